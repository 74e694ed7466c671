"""Tuning by measurement: the fastest candidate that computes the same as the baseline is used.

`candidates` lists what can be chosen. `trial` sets one candidate up on a copy of the model and
times it on the real batch. `choice` interleaves the trials and decides. `first_batch` starts the
tuning at a model's first training step. "Always compile" is wrong: on some models compiling is
slower than doing nothing.
"""
