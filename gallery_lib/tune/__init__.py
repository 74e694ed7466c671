"""Tuning by measurement: the fastest candidate that computes the same as the baseline is used.

The candidates take turns at a model's first training step. "Always compile" is wrong: on some
models compiling is slower than doing nothing.
"""
