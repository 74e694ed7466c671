"""Buffers of the batch-norm kernels: inputs in channels_last, and new results."""

from __future__ import annotations

import torch
from torch import Tensor

from gallery_lib.kernels import batch_norm_reference as rules
from gallery_lib.kernels.batch_norm_reference import Channels


def in_channels_last(tensor: Tensor) -> Tensor:
    """Return the tensor [N, C, H, W] in channels_last, a copy if necessary."""
    return tensor.contiguous(memory_format=torch.channels_last)


def without_gaps(*values: Tensor | None) -> Channels:
    """Return the values [C] of `Channels`, each contiguous."""
    return Channels(*(None if value is None else value.contiguous() for value in values))  # type: ignore[arg-type]


def new_like(x: Tensor) -> Tensor:
    """Return a new tensor of x's shape and dtype, in channels_last."""
    return torch.empty(x.shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


def new_pair(x: Tensor, *first: int) -> tuple[Tensor, Tensor]:
    """Return two new tensors [*first, C] in the dtype of the arithmetic."""
    shape, dtype = (*first, x.shape[1]), rules.arithmetic(x)
    return x.new_empty(shape, dtype=dtype), x.new_empty(shape, dtype=dtype)
