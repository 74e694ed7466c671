"""Packing of lists of tensors into the by-value structure of `cuda/tensor_list.cuh`.

The lists are split over as many launches as they need. The structure is passed by value, not as a
table in device memory. A table would have to be copied there whenever an address changes, and
gradients get new addresses. A captured CUDA graph cannot repeat such a copy.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

TENSORS = 48
CHUNK = 8192


@functools.cache
def tensor_list(lists: int) -> type[ctypes.Structure]:
    """Return the ctypes class of `TensorList<lists>`."""
    fields = [
        ("pointers", ctypes.c_void_p * TENSORS * lists),
        ("sizes", ctypes.c_longlong * TENSORS),
        ("first_block", ctypes.c_uint * (TENSORS + 1)),
        ("count", ctypes.c_uint),
    ]
    return type(f"TensorList{lists}", (ctypes.Structure,), {"_fields_": fields})


def same_layout(one: Tensor, other: Tensor) -> bool:
    """Return whether elements of the same index lie at the same distance from the start.

    The stride of a dimension of size 1 means nothing.
    """
    if one.shape != other.shape:
        return False
    if one.stride() == other.stride():
        return True
    strides = zip(one.shape, one.stride(), other.stride(), strict=True)
    return one.numel() <= 1 or all(a == b for size, a, b in strides if size > 1)


def laid_out_as(weights: Sequence[Tensor], column: Sequence[Tensor]) -> list[Tensor]:
    """Return the column with every tensor in its weight's memory layout.

    A tensor with another layout is replaced by a copy.
    """
    return [
        tensor if same_layout(weight, tensor) else torch.empty_like(weight).copy_(tensor)
        for weight, tensor in zip(weights, column, strict=True)
    ]


def is_dense(tensor: Tensor) -> bool:
    """Return whether the tensor has every element of the memory it spans exactly once.

    The dimensions may be in any order (channels_last, for instance).
    """
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(
        (stride, size)
        for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
        if size != 1
    ):
        if tensor.numel() and stride != expected:
            return False
        expected *= size
    return True


def packed(
    columns: Sequence[Sequence[Tensor | None]],
) -> Iterator[tuple[ctypes.Structure, slice, int]]:
    """Yield (structure, slice of the tensors, blocks) for each launch.

    `columns[0]` gives the sizes; None becomes a null pointer.
    """
    structure = tensor_list(len(columns))
    count = len(columns[0])
    for begin in range(0, count, TENSORS):
        part = slice(begin, min(begin + TENSORS, count))
        packing = structure()
        packing.count = part.stop - part.start
        blocks = 0
        for place, index in enumerate(range(part.start, part.stop)):
            for pointers, column in zip(packing.pointers, columns, strict=True):
                tensor = column[index]
                pointers[place] = None if tensor is None else tensor.data_ptr()
            size = columns[0][index].numel()  # type: ignore[union-attr]
            packing.sizes[place] = size
            packing.first_block[place] = blocks
            blocks += -(-size // CHUNK)
        packing.first_block[packing.count] = blocks
        yield packing, part, blocks
