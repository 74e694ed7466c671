"""Choose, do not assume: candidates take turns on the real model and batch, and the fastest that computes the same stays.

`candidates` says what can be chosen from, `trial` sets one up on a copy of the model and times it, `choice` lets them
take turns and decides, `first_batch` hooks this into a model's first training step. "Always compile" is wrong: on some
models it is slower than doing nothing.
"""
