"""Statistics of a batch: `gallery::batch_norm_statistics_`, and its parts for several processes.

The kernels use Welford's method in fp32, and merge in fp64 in a fixed order. In one process
`batch_norm_statistics_` does everything. With several, each has `batch_norm_partial`; after a
gather of (count, mean, squares), `batch_norm_combine_` merges them.

Inputs are [N, C, H, W]. References compute in fp32, or in fp64 for an fp64 input. Values of
channels are [C] in that dtype. The C++ (`cpu/batch_norm.cpp`) takes fp32 and bf16; its threads are
OpenMP's, and their number changes no bit of a result.
"""

from __future__ import annotations

import ctypes
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
    """Division of `rows` × `channels` into slabs of rows, and of slabs into tiles of channels.

    It depends only on the batch's shape, not on the device. So the order of summation, and with it
    every bit of the result, is the same everywhere.
    """

    rows: int
    channels: int
    tiles: int
    rows_per_slab: int
    in_vectors: bool

    @property
    def count(self) -> int:
        """Return the number of slabs."""
        return -(-self.rows // self.rows_per_slab)

    @property
    def blocks(self) -> int:
        """Return the number of blocks that work on all slabs."""
        return self.count * self.tiles

    def as_structure(self) -> ctypes.Structure:
        """Return the structure for a kernel."""
        return Shape(self.rows, self.rows_per_slab, self.channels, self.tiles, self.in_vectors)


def slabs_of(x: Tensor, *others: Tensor | None) -> Slabs:
    """Return how x [N, C, H, W] in channels_last is divided into slabs.

    `others` are the tensors that are read and written beside x. Results of a slab are [slabs, C] in
    fp32.
    """
    rows, channels, width = rows_of(x), x.shape[1], 16 // x.element_size()
    aligned = all(tensor is None or tensor.data_ptr() % 16 == 0 for tensor in (x, *others))
    in_vectors = aligned and channels % width == 0
    tiles = -(-channels // (TILE * width if in_vectors else TILE))
    wanted = max(4 * LANES, -(-rows * tiles // BLOCKS), -(-rows // SLABS))
    return Slabs(rows, channels, tiles, -(-wanted // LANES) * LANES, in_vectors)


_Moments = structure(shape=Shape, **each(POINTER, "x means squares batches"))
_Combine = structure(
    **each(POINTER, "means squares counts"),
    **each(LONG, "rows rows_per_part"),
    **each(INT, "parts channels"),
    **each(POINTER, "mean squares_of_all inverse_deviation running_mean running_variance batches"),
    **each(DOUBLE, "momentum epsilon"),
)


def _launch_moments(
    x: Tensor, batches: Tensor | None = None
) -> tuple[Slabs, tuple[Tensor, Tensor]]:
    """Compute mean and squared deviations of each slab, [slabs, C]; count `batches` up by one."""
    slabs = slabs_of(x)
    parts = new_pair(x, slabs.count)
    # Without rows there is nothing to compute, but a batch to count.
    blocks = slabs.blocks or int(batches is not None)
    values = (slabs.as_structure(), x, *parts, batches)
    enqueue("batch_norm.cu", "batch_norm_moments", x, blocks, _Moments, *values)
    return slabs, parts


def _launch_combine(
    parts: tuple[Tensor, Tensor],
    counts: Tensor | Slabs,
    results: tuple[Tensor, Tensor | None, Tensor | None],
    running: tuple[Any, ...] = (None, None, None, None, 0.0),
) -> None:
    """Merge parts into mean, squared deviations and inverse deviation, and running statistics.

    `counts` holds the rows of each part, int64 on the device, or is the division into slabs.
    """
    running_mean, running_var, batches, momentum, eps = running
    number, channels = parts[0].shape
    rows = (counts.rows, counts.rows_per_slab) if isinstance(counts, Slabs) else (0, 0)
    enqueue(
        "batch_norm.cu",
        "batch_norm_combine",
        parts[0],
        -(-channels // TILE),
        _Combine,
        *parts,
        None if isinstance(counts, Slabs) else counts,
        *rows,
        number,
        channels,
        *results,
        running_mean,
        running_var,
        batches if momentum is None else None,
        momentum or 0.0,
        eps,
    )


def _count_versions(*changed: Tensor | None) -> None:
    """Tell autograd which tensors were changed in place."""
    torch.autograd.graph.increment_version([tensor for tensor in changed if tensor is not None])


def _partial_reference(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return (mean, sum of squared deviations from it) [C] of the rows of this process.

    Both are 0 when there are no rows.
    """
    if rows_of(x) == 0:
        nothing = x.new_zeros(x.shape[1], dtype=arithmetic(x))
        return nothing, nothing.clone()
    variance, mean = torch.var_mean(x.to(arithmetic(x)), OVER, correction=0)
    return mean, variance * rows_of(x)


def _partial_kernel(x: Tensor) -> tuple[Tensor, Tensor]:
    x = in_channels_last(x)
    slabs, parts = _launch_moments(x)
    mean, squares = new_pair(x)
    _launch_combine(parts, slabs, (mean, squares, None))
    return mean, squares


def _partial_cpp(x: Tensor) -> tuple[Tensor, Tensor]:
    mean, squares = new_pair(x)
    call_cpp("statistics", in_channels_last(x), *[None] * 5, mean, squares, flag=True)
    return mean, squares


register(
    "batch_norm_partial",
    "(Tensor x) -> (Tensor, Tensor)",
    reference=_partial_reference,
    kernel=_partial_kernel,
    device=kernel_device,
    fake=new_pair,
    cpp=Cpp(lambda x: suits_cpp(x, (), ()), _partial_cpp),
)


def _combine_reference(
    counts: Tensor,
    means: Tensor,
    squares: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    batches: Tensor | None,
    momentum: float | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Return (mean, inverse deviation) [C] of all parts together; update running statistics.

    `counts` is [parts]; `means` and `squares` are [parts, C].
    """
    n = counts.double()[:, None]
    total = n.sum().clamp(min=1)
    mean = (n * means).sum(0) / total
    squared = (squares + n * (means - mean).square()).sum(0)
    if running_mean is not None and running_var is not None:
        share: Tensor | float = momentum or 0.0
        if momentum is None and batches is not None:
            share = 1 / batches.double()
        share = (n.sum() > 0).double() * share  # without rows, no change
        running_mean.copy_((1 - share) * running_mean + share * mean)
        running_var.copy_((1 - share) * running_var + share * squared / (total - 1).clamp(min=1))
    _count_versions(running_mean, running_var)
    return mean.to(means.dtype), (squared / total + eps).rsqrt().to(means.dtype)


def _combine_kernel(
    counts: Tensor, means: Tensor, squares: Tensor, *running: Any
) -> tuple[Tensor, Tensor]:
    # These names keep the copies alive until the launch.
    counts, means, squares = counts.contiguous(), means.contiguous(), squares.contiguous()
    mean, inverse_deviation = torch.empty_like(means[0]), torch.empty_like(means[0])
    _launch_combine((means, squares), counts, (mean, None, inverse_deviation), running)
    _count_versions(*running[:2])
    return mean, inverse_deviation


def _combine_device(counts: Tensor, means: Tensor, *_: Any) -> torch.device | None:
    return means.device if means.dtype is torch.float32 else None


def _combine_fake(counts: Tensor, means: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(means[0]), torch.empty_like(means[0])


register(
    "batch_norm_combine_",
    "(Tensor counts, Tensor means, Tensor squares, Tensor(a!)? running_mean, "
    "Tensor(b!)? running_var, Tensor? batches, float? momentum, float eps) -> (Tensor, Tensor)",
    reference=_combine_reference,
    kernel=_combine_kernel,
    device=_combine_device,
    fake=_combine_fake,
)


def _statistics_reference(
    x: Tensor, running_mean: Any, running_var: Any, batches: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor]:
    if batches is not None:
        batches.add_(1)
        _count_versions(batches)
    mean, squares = _partial_reference(x)
    counts = torch.full((1,), rows_of(x), device=x.device)
    running = (running_mean, running_var, batches, *rest)
    return _combine_reference(counts, mean[None], squares[None], *running)


def _statistics_kernel(x: Tensor, *running: Any) -> tuple[Tensor, Tensor]:
    x = in_channels_last(x)
    slabs, parts = _launch_moments(x, running[2])
    mean, inverse_deviation = new_pair(x)
    _launch_combine(parts, slabs, (mean, None, inverse_deviation), running)
    _count_versions(*running[:3])
    return mean, inverse_deviation


def _statistics_cpp(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    batches: Tensor | None,
    momentum: float | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
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


def _cpp_takes_statistics(x: Tensor, *rest: Any) -> bool:
    return suits_cpp(x, (), rest[:2]) and (rest[2] is None or rest[2].dtype is torch.int64)


register(
    "batch_norm_statistics_",
    "(Tensor x, Tensor(a!)? running_mean, Tensor(b!)? running_var, Tensor(c!)? batches, "
    "float? momentum, float eps) -> (Tensor, Tensor)",
    reference=_statistics_reference,
    kernel=_statistics_kernel,
    device=kernel_device,
    fake=lambda x, *_: new_pair(x),
    cpp=Cpp(_cpp_takes_statistics, _statistics_cpp),
)
