"""Statistics of a batch: `gallery::batch_norm_statistics_`.

The kernels use Welford's method in fp32, and merge in fp64 in a fixed order.

Inputs are [N, C, H, W]. References compute in fp32, or in fp64 for an fp64 input. Values of
channels are [C] in that dtype. The C++ (`cpu/batch_norm.cpp`) takes fp32 and bf16; its threads are
OpenMP's, and their number changes no bit of a result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gallery_lib.kernels.runtime import cpp
from gallery_lib.kernels.runtime.launch import (
    DOUBLE,
    INT,
    LONG,
    POINTER,
    THREADS,
    each,
    enqueue,
    structure,
)
from gallery_lib.kernels.runtime.operators import Cpp, kernel_device, register

OVER = (0, 2, 3)
TILE, LANES = 8, THREADS // 8
BLOCKS, SLABS = 1024, 512
"""BLOCKS: blocks that fill a large device once. SLABS: the most slabs, since the results of all
slabs have to be merged."""
_CPP = cpp.Functions(
    "batch_norm.cpp",
    "-fopenmp",
    **each(LONG, "given threads flag"),
    **each(DOUBLE, "number epsilon"),
)
_COLUMNS = (
    *("x", "gradient", "more", "result", "residual", "written"),
    *("mean", "second", "weight", "bias", "first_sum", "second_sum"),
)
"""Tensors of a call of C++, in the order of `Column` in `cpu/batch_norm.h`."""
available = _CPP.available


def call_cpp(
    function: str,
    *tensors: Tensor | None,
    flag: bool = False,
    number: float = 0.0,
    epsilon: float = 0.0,
) -> None:
    """Call a function with the tensors of `_COLUMNS`, each of which may be None.

    Raises:
        cpp.Refused: for tensors that do not fit together; nothing is changed then.
    """
    row = [tensor for tensor in tensors if tensor is not None]
    names = [n for n, t in zip(_COLUMNS, tensors, strict=False) if t is not None]
    given = sum(1 << place for place, tensor in enumerate(tensors) if tensor is not None)
    values = (given, torch.get_num_threads(), flag, number, epsilon)
    _CPP.call(f"batch_norm_{function}", names, row, *values)


def suits_cpp(
    x: Tensor, others: tuple[Tensor | None, ...], values: tuple[Tensor | None, ...]
) -> bool:
    """Return whether batches like x and fp32 values [C] are what the C++ is written for."""
    return (
        x.dtype in (torch.bfloat16, torch.float32)
        and x.numel() > 0
        and all(other is None or other.dtype is x.dtype for other in others)
        and all(
            value is None or (value.dtype is torch.float32 and value.is_contiguous())
            for value in values
        )
        and available()
    )


def arithmetic(x: Tensor) -> torch.dtype:
    """Return the dtype of the arithmetic on batches like `x`, and of their channels' values."""
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def rows_of(x: Tensor) -> int:
    """Return how many values each channel has: N · H · W."""
    return x.shape[0] * x.shape[2] * x.shape[3]


def in_channels_last(tensor: Tensor) -> Tensor:
    """Return the tensor [N, C, H, W] in channels_last, a copy if necessary."""
    return tensor.contiguous(memory_format=torch.channels_last)


def new_pair(x: Tensor, *first: int) -> tuple[Tensor, Tensor]:
    """Return two new tensors [*first, C] in the dtype of the arithmetic."""
    shape, dtype = (*first, x.shape[1]), arithmetic(x)
    return x.new_empty(shape, dtype=dtype), x.new_empty(shape, dtype=dtype)


Shape = structure(**each(LONG, "rows rows_per_slab"), **each(INT, "channels tiles in_vectors"))
"""`Shape` of batch_norm.cuh."""


@dataclass(frozen=True)
class Slabs:
    """Division of a batch into slabs of rows, and of slabs into tiles of channels.

    It depends only on the batch's shape, and so does every bit of a result. `shape` is the
    structure for a kernel; results of slabs are [count, C] in fp32.
    """

    shape: Any
    count: int
    blocks: int


def slabs_of(x: Tensor, *others: Tensor | None) -> Slabs:
    """Return how x [N, C, H, W] in channels_last is divided into slabs.

    `others` are the tensors that are read and written beside x.
    """
    rows, channels, width = rows_of(x), x.shape[1], 16 // x.element_size()
    aligned = all(tensor is None or tensor.data_ptr() % 16 == 0 for tensor in (x, *others))
    in_vectors = aligned and channels % width == 0
    tiles = -(-channels // (TILE * width if in_vectors else TILE))
    wanted = max(4 * LANES, -(-rows * tiles // BLOCKS), -(-rows // SLABS))
    rows_per_slab = -(-wanted // LANES) * LANES
    count = -(-rows // rows_per_slab)
    shape = Shape(rows, rows_per_slab, channels, tiles, in_vectors)
    return Slabs(shape, count, count * tiles)


_Moments = structure(shape=Shape, **each(POINTER, "x means squares batches"))
_Combine = structure(
    **each(POINTER, "means squares"),
    **each(LONG, "rows rows_per_part"),
    **each(INT, "parts channels"),
    **each(POINTER, "mean inverse_deviation running_mean running_variance batches"),
    **each(DOUBLE, "momentum epsilon"),
)


def _count_versions(*changed: Tensor | None) -> None:
    """Tell autograd which tensors were changed in place."""
    torch.autograd.graph.increment_version([tensor for tensor in changed if tensor is not None])


def _reference(x: Tensor, *running: Any) -> tuple[Tensor, Tensor]:
    """Return (mean, inverse deviation) [C]; update running statistics and count `batches` up."""
    running_mean, running_var, batches, momentum, eps = running
    if batches is not None:
        batches.add_(1)
    n, wide = rows_of(x), arithmetic(x)
    if n == 0:  # then the running statistics stay as they are
        mean, variance = x.new_zeros(2, x.shape[1], dtype=torch.float64).unbind()
    else:
        variance, mean = torch.var_mean(x.to(wide), OVER, correction=0)
        mean, variance = mean.double(), variance.double()
    if n and running_mean is not None and running_var is not None:
        share: Tensor | float = momentum or 0.0
        if momentum is None and batches is not None:
            share = 1 / batches.double()
        running_mean.copy_((1 - share) * running_mean + share * mean)
        running_var.copy_((1 - share) * running_var + share * variance * n / max(n - 1, 1))
    _count_versions(running_mean, running_var, batches)
    return mean.to(wide), (variance + eps).rsqrt().to(wide)


def _kernel(x: Tensor, *running: Any) -> tuple[Tensor, Tensor]:
    running_mean, running_var, batches, momentum, eps = running
    x = in_channels_last(x)
    slabs = slabs_of(x)
    parts, shape = new_pair(x, slabs.count), slabs.shape
    # Without rows there is nothing to compute, but a batch to count.
    blocks = slabs.blocks or int(batches is not None)
    values = (shape, x, *parts, batches)
    enqueue("batch_norm.cu", "batch_norm_moments", x, blocks, _Moments, *values)
    results, counted = new_pair(x), batches if momentum is None else None
    merged = (*parts, shape.rows, shape.rows_per_slab, *parts[0].shape, *results)
    rest = (running_mean, running_var, counted, momentum or 0.0, eps)
    blocks = -(-x.shape[1] // TILE)
    enqueue("batch_norm.cu", "batch_norm_combine", x, blocks, _Combine, *merged, *rest)
    _count_versions(running_mean, running_var, batches)
    return results


def _in_cpp(x: Tensor, *running: Any) -> tuple[Tensor, Tensor]:
    running_mean, running_var, batches, momentum, eps = running
    if batches is not None:
        batches.add_(1)
    share = momentum or 0.0
    if momentum is None and batches is not None:
        share = 1 / int(batches)
    mean, inverse_deviation = new_pair(x)
    changed = (running_mean, running_var)
    columns = (in_channels_last(x), *[None] * 5, mean, inverse_deviation, None, None, *changed)
    call_cpp("statistics", *columns, number=share, epsilon=eps)
    _count_versions(*changed, batches)
    return mean, inverse_deviation


def _takes_cpp(x: Tensor, *rest: Any) -> bool:
    return suits_cpp(x, (), rest[:2]) and (rest[2] is None or rest[2].dtype is torch.int64)


register(
    "batch_norm_statistics_",
    "(Tensor x, Tensor(a!)? running_mean, Tensor(b!)? running_var, Tensor(c!)? batches, "
    "float? momentum, float eps) -> (Tensor, Tensor)",
    reference=_reference,
    kernel=_kernel,
    device=kernel_device,
    fake=lambda x, *_: new_pair(x),
    cpp=Cpp(_takes_cpp, _in_cpp),
)
