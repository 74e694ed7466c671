"""Pass batches from a DataLoader's workers through shared memory that is reused.

torch passes every batch in a new file of shared memory, of which both processes map the file and
take a page fault for each of its pages. With `collate` as the loader's `collate_fn`, a worker keeps
the blocks that its batches lie in, and the main process keeps them mapped: torch finds what it has
mapped already. The first byte of a block is 1 while something in the main process refers to its
batch. So a batch that is kept stays unchanged. A worker whose blocks are all in use passes batches
as torch does.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import default_collate, get_worker_info

# maximum number of blocks of a worker: more than are in flight, and a few that the loop holds
_BLOCKS = 16
_ALIGNMENT = 64  # bytes

# a column of a batch in a block: dtype, shape, first byte, bytes
Column = tuple[torch.dtype, tuple[int, ...], int, int]


def collate(items: Sequence[Any]) -> Any:
    """Return `items` as a batch, as torch's `default_collate` makes it.

    In a worker, tensors of equal shapes lie in reused memory.
    """
    if get_worker_info() is None or not _fits(items):
        return default_collate(list(items))
    columns = list(zip(*items, strict=True))
    layout, size = _layout(columns)
    block = _free_block(size)
    if block is None:
        return default_collate(list(items))
    numbers: list[Any] = []
    for column, place in zip(columns, layout, strict=True):
        numbers.append(None if place else list(column))
        if place is not None:
            torch.stack(column, out=_part(block, place))
    block[0] = 1
    return _Message((os.getpid(), block, layout, numbers))


def _fits(items: Sequence[Any]) -> bool:
    """Return whether all items are sequences of as many numbers and plain tensors of one shape."""
    first = items[0]
    if type(first) not in (tuple, list) or len({len(item) for item in items}) > 1:
        return False
    return any(isinstance(part, Tensor) for part in first) and all(
        _alike(column) for column in zip(*items, strict=True)
    )


def _alike(column: Sequence[Any]) -> bool:
    first = column[0]
    if type(first) in (int, float):
        return all(type(part) is type(first) for part in column)
    if type(first) is not Tensor or first.layout is not torch.strided or first.numel() == 0:
        return False
    return first.device.type == "cpu" and all(
        type(part) is Tensor
        and part.dtype == first.dtype
        and part.shape == first.shape
        and not part.requires_grad
        for part in column
    )


def _layout(columns: Sequence[Sequence[Any]]) -> tuple[list[Column | None], int]:
    """Return where each column lies in a block (None for numbers), and the bytes of all."""
    layout: list[Column | None] = []
    at = _ALIGNMENT  # behind the byte that says whether the block is in use
    for column in columns:
        first = column[0]
        if not isinstance(first, Tensor):
            layout.append(None)
            continue
        size = len(column) * first.numel() * first.element_size()
        layout.append((first.dtype, (len(column), *first.shape), at, size))
        at += -(-size // _ALIGNMENT) * _ALIGNMENT
    return layout, at


def _part(block: Tensor, place: Column) -> Tensor:
    dtype, shape, start, size = place
    return block[start : start + size].view(dtype).view(shape)


_blocks: list[Tensor] = []  # blocks of this process, if it is a worker: uint8 [bytes] each


def _free_block(size: int) -> Tensor | None:
    """Return a free block of at least `size` bytes, or None if all are in use."""
    free = [number for number, block in enumerate(_blocks) if not block[0]]
    for number in free:
        if len(_blocks[number]) >= size:
            return _blocks[number]
    if len(_blocks) == _BLOCKS:
        if not free:
            return None
        del _blocks[free[0]]  # too small
    _blocks.append(torch.empty(size, dtype=torch.uint8).share_memory_())
    return _blocks[-1]


class _Message:
    def __init__(self, content: tuple[Any, ...]) -> None:
        self.content = content

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _received, self.content


# blocks that the main process has mapped, by their worker's process and by their address
_mapped: dict[int, dict[int, NDArray[np.uint8]]] = {}


def _received(
    process: int, block: Tensor, layout: list[Column | None], numbers: list[Any]
) -> list[Tensor]:
    if process not in _mapped:
        _forget_ended()
    blocks = _mapped.setdefault(process, {})
    whole = blocks.setdefault(block.data_ptr(), block.numpy())
    if len(blocks) > _BLOCKS:  # the worker has replaced the oldest by a larger one
        del blocks[next(iter(blocks))]
    # `lent` lives as long as the storage of the tensors below, which refers to it
    lent = whole.view()
    weakref.finalize(lent, _give_back, whole, os.getpid()).atexit = False
    batch = torch.from_numpy(lent)
    return [
        default_collate(values) if place is None else _part(batch, place)
        for place, values in zip(layout, numbers, strict=True)
    ]


def _give_back(block: NDArray[np.uint8], receiver: int) -> None:
    if os.getpid() != receiver:
        return  # a copy in a forked process: the batch may well be in use
    block[0] = 0  # without torch: a batch may end while torch traces or captures
    _forget_ended()


def _forget_ended() -> None:
    """Unmap the blocks of workers that have ended; those of batches in use go with the batches."""
    for process in list(_mapped):
        if not psutil.pid_exists(process):
            _mapped.pop(process, None)
