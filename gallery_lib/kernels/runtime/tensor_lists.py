"""Packs lists of tensors into the by-value structure of `cuda/tensor_list.cuh`, split over as many launches as it takes.

By value and not as a table in device memory: a table would have to be copied there whenever an address changes (and
gradients get new ones), which a captured CUDA graph cannot repeat.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator, Sequence

from torch import Tensor

from gallery_lib.errors import InputError

TENSORS = 48
CHUNK = 8192


@functools.cache
def tensor_list(lists: int) -> type[ctypes.Structure]:
    """`TensorList<lists>`."""
    fields = [
        ("pointers", ctypes.c_void_p * TENSORS * lists),
        ("sizes", ctypes.c_longlong * TENSORS),
        ("first_block", ctypes.c_uint * (TENSORS + 1)),
        ("count", ctypes.c_uint),
    ]
    return type(f"TensorList{lists}", (ctypes.Structure,), {"_fields_": fields})


def check_same_layout(columns: Sequence[Sequence[Tensor]]) -> None:
    """Elements at the same place in memory belong together: raises InputError unless sizes and strides say so."""
    for row in zip(*columns, strict=True):
        first = row[0]
        if not is_dense(first):
            raise InputError(
                f"a tensor of shape {tuple(first.shape)} and strides {first.stride()} has gaps or overlaps."
            )
        for other in row[1:]:
            if not same_layout(first, other):
                raise InputError(
                    f"tensors that belong together differ in layout: shape {tuple(first.shape)} strides {first.stride()} and "
                    f"shape {tuple(other.shape)} strides {other.stride()}."
                )


def same_layout(one: Tensor, other: Tensor) -> bool:
    """Elements of the same index lie at the same distance from the start. The stride of a dimension of size 1 means nothing."""
    if one.shape != other.shape:
        return False
    if one.stride() == other.stride():
        return True
    strides = zip(one.shape, one.stride(), other.stride(), strict=True)
    return one.numel() <= 1 or all(a == b for size, a, b in strides if size > 1)


def is_dense(tensor: Tensor) -> bool:
    """Every element of the memory it spans exactly once, in any order of dimensions (channels_last, for instance)."""
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
    """(structure, which tensors, blocks) for each launch. `columns[0]` gives the sizes; None becomes a null pointer."""
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
