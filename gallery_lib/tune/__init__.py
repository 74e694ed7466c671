"""Tuning by measurement: the fastest candidate that computes the same as the baseline is used.

`candidates` lists what can be chosen. `choice` times each on a copy of the model and the real
batch, in turns, and decides. `first_batch` starts the
tuning at a model's first training step. "Always compile" is wrong: on some models compiling is
slower than doing nothing.
"""
