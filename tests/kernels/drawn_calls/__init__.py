"""Calls of the C++ of `kernels/cpu` with drawn tensors, which fit together or do not."""
