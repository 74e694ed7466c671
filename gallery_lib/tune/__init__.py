"""Tuning by measurement: the fastest candidate that computes the same as the baseline is used.

`trial` lists what can be chosen, and runs each on a copy of the model and the real batch. `choice`
lets them take turns at a model's first training step, and decides. "Always compile" is wrong: on
some models compiling is slower than doing nothing.
"""
