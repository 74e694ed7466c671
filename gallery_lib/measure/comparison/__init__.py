"""Comparison of two variants of a training run: parity first, then speed."""
