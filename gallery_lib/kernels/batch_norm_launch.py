"""Launches of the batch-norm kernels as plain data: which block works on which rows and channels.

The division of rows depends only on the batch's shape, not on the device. So the order of
summation, and with it every bit of the result, is the same everywhere.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from gallery_lib.kernels import batch_norm_reference
from gallery_lib.kernels.batch_norm_reference import Channels, Running
from gallery_lib.kernels.runtime.launch import ELEMENTS, THREADS, Launch

SOURCE, BACKWARD_SOURCE = "batch_norm.cu", "batch_norm_backward.cu"
TILE, LANES = 8, THREADS // 8
BLOCKS, SLABS = 1024, 512
"""BLOCKS: blocks that fill a large device once. SLABS: the most slabs, since the results of all
slabs have to be merged."""


class _Shape(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_longlong),
        ("rows_per_slab", ctypes.c_longlong),
        *((name, ctypes.c_int) for name in ("channels", "tiles", "in_vectors")),
    )


def _pointers(*names: str) -> tuple[tuple[str, type], ...]:
    return tuple((name, ctypes.c_void_p) for name in names)


class _Channels(ctypes.Structure):
    _fields_ = _pointers("mean", "inverse_deviation", "weight", "bias")


class _MomentsArguments(ctypes.Structure):
    _fields_ = (("shape", _Shape), *_pointers("x", "means", "squares", "batches"))


class _CombineArguments(ctypes.Structure):
    _fields_ = (
        *_pointers("means", "squares", "counts"),
        ("rows", ctypes.c_longlong),
        ("rows_per_part", ctypes.c_longlong),
        ("parts", ctypes.c_int),
        ("channels", ctypes.c_int),
        *_pointers(
            "mean",
            "squares_of_all",
            "inverse_deviation",
            "running_mean",
            "running_variance",
            "batches",
        ),
        ("momentum", ctypes.c_double),
        ("epsilon", ctypes.c_double),
    )


class _ReluArguments(ctypes.Structure):
    _fields_ = (
        ("shape", _Shape),
        *_pointers("x", "residual"),
        ("channels", _Channels),
        *_pointers("result"),
    )


class _SumsArguments(ctypes.Structure):
    _fields_ = (
        ("shape", _Shape),
        *_pointers("gradient", "x", "result"),
        ("channels", _Channels),
        *_pointers("masked", "products", "gradients"),
    )


class _TotalsArguments(ctypes.Structure):
    _fields_ = (
        *_pointers("products", "gradients", "inverse_deviation"),
        ("slabs", ctypes.c_int),
        ("channels", ctypes.c_int),
        *_pointers("of_weight", "of_bias"),
    )


class _InputArguments(ctypes.Structure):
    _fields_ = (
        ("shape", _Shape),
        *_pointers("gradient", "x"),
        ("channels", _Channels),
        *_pointers("of_weight", "of_bias", "count"),
        ("masked", ctypes.c_int),
        *_pointers("of_x"),
    )


@dataclass(frozen=True)
class Slabs:
    """Division of `rows` × `channels` into slabs of rows, and of slabs into tiles of channels."""

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

    def as_structure(self) -> _Shape:
        """Return the structure `Shape` of batch_norm.cuh."""
        return _Shape(self.rows, self.rows_per_slab, self.channels, self.tiles, self.in_vectors)


def slabs_of(x: Tensor, *others: Tensor | None) -> Slabs:
    """Return how x [N, C, H, W] in channels_last is divided into slabs.

    `others` are the tensors that are read and written beside x. Results of a slab are [slabs, C] in
    fp32.
    """
    rows, channels, width = batch_norm_reference.rows(x), x.shape[1], 16 // x.element_size()
    aligned = all(tensor is None or tensor.data_ptr() % 16 == 0 for tensor in (x, *others))
    in_vectors = aligned and channels % width == 0
    tiles = -(-channels // (TILE * width if in_vectors else TILE))
    wanted = max(4 * LANES, -(-rows * tiles // BLOCKS), -(-rows // SLABS))
    return Slabs(rows, channels, tiles, -(-wanted // LANES) * LANES, in_vectors)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _channels(c: Channels) -> _Channels:
    return _Channels(
        c.mean.data_ptr(), c.inverse_deviation.data_ptr(), _address(c.weight), _address(c.bias)
    )


def _column_blocks(channels: int) -> int:
    return -(-channels // TILE)


def moments(
    x: Tensor, slabs: Slabs, means: Tensor, squares: Tensor, batches: Tensor | None = None
) -> Launch:
    """Return the launch that computes mean and squared deviations of each slab, [slabs, C].

    The kernel also counts `batches` up by one, when given.
    """
    arguments = _MomentsArguments(
        slabs.as_structure(), x.data_ptr(), means.data_ptr(), squares.data_ptr(), _address(batches)
    )
    # Without rows there is nothing to compute, but a batch to count.
    return Launch(
        SOURCE,
        "batch_norm_moments",
        ELEMENTS[x.dtype],
        slabs.blocks or int(batches is not None),
        arguments,
    )


def combine(
    means: Tensor,
    squares: Tensor,
    parts: Tensor | Slabs,
    running: Running,
    epsilon: float,
    mean: Tensor,
    *,
    squares_of_all: Tensor | None = None,
    inverse_deviation: Tensor | None = None,
) -> Launch:
    """Return the launch that merges all parts into results [C] and the running statistics.

    `parts` holds the rows of each part, int64 on the device, or is the division into slabs.
    """
    slabs = parts if isinstance(parts, Slabs) else None
    arguments = _CombineArguments(
        means=means.data_ptr(),
        squares=squares.data_ptr(),
        counts=None if isinstance(parts, Slabs) else parts.data_ptr(),
        rows=slabs.rows if slabs else 0,
        rows_per_part=slabs.rows_per_slab if slabs else 0,
        parts=means.shape[0],
        channels=means.shape[1],
        mean=mean.data_ptr(),
        squares_of_all=_address(squares_of_all),
        inverse_deviation=_address(inverse_deviation),
        running_mean=_address(running.mean),
        running_variance=_address(running.variance),
        batches=_address(running.batches) if running.momentum is None else None,
        momentum=running.momentum or 0.0,
        epsilon=epsilon,
    )
    return Launch(
        SOURCE,
        "batch_norm_combine",
        ELEMENTS[torch.float32],
        _column_blocks(means.shape[1]),
        arguments,
    )


def normalise(x: Tensor, residual: Tensor | None, c: Channels, result: Tensor) -> Launch:
    """Return the launch of the forward pass, given the batch's mean and deviation."""
    slabs = slabs_of(x, residual, result)
    arguments = _ReluArguments(
        slabs.as_structure(), x.data_ptr(), _address(residual), _channels(c), result.data_ptr()
    )
    return Launch(SOURCE, "batch_norm_relu", ELEMENTS[x.dtype], slabs.blocks, arguments)


def sums(
    gradient: Tensor,
    x: Tensor,
    result: Tensor | None,
    c: Channels,
    masked: Tensor,
    slabs: Slabs,
    parts: tuple[Tensor, Tensor],
) -> Launch:
    """Return the launch that sums the gradients of weight and bias over each slab, [slabs, C].

    The kernel also writes `masked` when there is a `result`.
    """
    tensors = (gradient.data_ptr(), x.data_ptr(), _address(result))
    rest = (masked.data_ptr(), parts[0].data_ptr(), parts[1].data_ptr())
    arguments = _SumsArguments(slabs.as_structure(), *tensors, _channels(c), *rest)
    return Launch(BACKWARD_SOURCE, "batch_norm_sums", ELEMENTS[x.dtype], slabs.blocks, arguments)


def totals(
    products: Tensor,
    gradients: Tensor,
    inverse_deviation: Tensor,
    of_weight: Tensor,
    of_bias: Tensor,
) -> Launch:
    """Return the launch that adds the slabs' sums up to the gradients of weight and bias [C]."""
    slabs, channels = products.shape
    results = (of_weight.data_ptr(), of_bias.data_ptr())
    arguments = _TotalsArguments(
        products.data_ptr(),
        gradients.data_ptr(),
        inverse_deviation.data_ptr(),
        slabs,
        channels,
        *results,
    )
    return Launch(
        BACKWARD_SOURCE,
        "batch_norm_totals",
        ELEMENTS[torch.float32],
        _column_blocks(channels),
        arguments,
    )


def of_input(
    gradient: Tensor,
    masked: bool,
    x: Tensor,
    c: Channels,
    of_weight: Tensor,
    of_bias: Tensor,
    count: Tensor | None,
    of_x: Tensor,
) -> Launch:
    """Return the launch that computes the gradient of x.

    `masked` says whether `gradient` has been through ReLU's mask.
    """
    slabs = slabs_of(x, gradient, of_x)
    tensors = (gradient.data_ptr(), x.data_ptr())
    rest = (of_weight.data_ptr(), of_bias.data_ptr(), _address(count), masked, of_x.data_ptr())
    arguments = _InputArguments(slabs.as_structure(), *tensors, _channels(c), *rest)
    return Launch(BACKWARD_SOURCE, "batch_norm_input", ELEMENTS[x.dtype], slabs.blocks, arguments)
