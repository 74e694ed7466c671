"""Pass batches from a DataLoader's workers through shared memory that is reused.

torch passes every batch in a new file of shared memory. Both processes map the file, take a page
fault for each of its pages and hand a file descriptor over. With `collate` as the loader's
`collate_fn`, a worker keeps the blocks that its batches lie in. A block is sent once; later
messages say only which block holds the batch. There is one byte in shared memory for each block. It
tells the worker when nothing in the main process refers to the batch any more. So a batch that is
kept stays unchanged. A worker whose blocks are all in use passes batches as torch does.
"""

from __future__ import annotations

import os
import uuid
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import default_collate, get_worker_info

_BLOCKS = 16
"""Maximum number of blocks of a worker: more than are in flight, and a few that the loop holds."""
_NEW, _OUT, _BACK = 0, 1, 2
"""States of a block.

_NEW: the main process does not know the block. _OUT: the block has a batch out. _BACK: the block is
free, and the main process has it mapped.
"""
_ALIGNMENT = 64  # bytes

# a column of a batch in a block: dtype, shape, first byte, bytes
Column = tuple[torch.dtype, tuple[int, ...], int, int]


def collate(items: Sequence[Any]) -> Any:
    """Return `items` as a batch, as torch's `default_collate` makes it.

    In a worker, tensors of equal shapes lie in reused memory.
    """
    if get_worker_info() is None or not _fits(items):
        return default_collate(list(items))
    return _worker().batch(items)


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
    if not isinstance(first, Tensor):
        return all(isinstance(part, (int, float)) for part in column)
    plain = {type(part) for part in column} == {Tensor} and first.layout == torch.strided
    if not plain or first.device.type != "cpu" or first.is_quantized or not first.numel():
        return False
    return all(
        part.dtype == first.dtype and part.shape == first.shape and not part.requires_grad
        for part in column
    )


@dataclass
class _Worker:
    """State of a worker: its blocks (uint8) and their states (uint8 [_BLOCKS])."""

    name: str
    pid: int
    shared_states: Tensor  # to be sent
    states: NDArray[np.uint8]  # the same memory
    blocks: dict[int, Tensor] = field(default_factory=dict)
    known: bool = False  # the main process has `states` mapped

    def batch(self, items: Sequence[Any]) -> Any:
        columns = list(zip(*items, strict=True))
        layout, size = _layout(columns)
        number = self._free(size)
        if number is None:
            return default_collate(list(items))
        block = self.blocks[number]
        numbers: list[Any] = []
        for column, place in zip(columns, layout, strict=True):
            numbers.append(None if place else list(column))
            if place is not None:
                torch.stack(column, out=_part(block, place))
        self.known = self.known or bool((self.states == _BACK).any())
        sent = block if self.states[number] == _NEW else None
        self.states[number] = _OUT
        states = None if self.known else self.shared_states
        return _Message((self.name, self.pid, states, number, sent, layout, numbers))

    def _free(self, size: int) -> int | None:
        """Return the number of a free block of at least `size` bytes, or None if all are out."""
        free = [number for number, state in enumerate(self.states.tolist()) if state != _OUT]
        number = next((n for n in free if n in self.blocks and len(self.blocks[n]) >= size), None)
        if number is None and free:
            # if there is no empty place, replace a block that is too small
            number = next((n for n in free if n not in self.blocks), free[0])
            self.blocks[number] = torch.empty(size, dtype=torch.uint8).share_memory_()
            self.states[number] = _NEW
        return number


def _layout(columns: Sequence[Sequence[Any]]) -> tuple[list[Column | None], int]:
    """Return where each column lies in a block (None for numbers), and the bytes of all."""
    layout: list[Column | None] = []
    at = 0
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


class _Message:
    def __init__(self, content: tuple[Any, ...]) -> None:
        self.content = content

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _received, self.content


_own: list[_Worker] = []
"""State of this process if it is a worker; a process forked from a worker makes its own."""


def _worker() -> _Worker:
    if not _own or _own[0].pid != os.getpid():
        states = torch.zeros(_BLOCKS, dtype=torch.uint8).share_memory_()
        _own[:] = [_Worker(uuid.uuid4().hex, os.getpid(), states, states.numpy())]
    return _own[0]


@dataclass
class _Mapped:
    """State that the main process keeps of a worker: its block states and mapped blocks."""

    pid: int
    states: NDArray[np.uint8]  # set without torch: a batch may end while torch traces or captures
    blocks: dict[int, Tensor] = field(default_factory=dict)


_mapped: dict[str, _Mapped] = {}


def _received(
    name: str,
    pid: int,
    states: Tensor | None,
    number: int,
    block: Tensor | None,
    layout: list[Column | None],
    numbers: list[Any],
) -> list[Tensor]:
    worker = _mapped.get(name)
    if worker is None:
        _forget_ended()
        if states is None:
            raise RuntimeError(
                f"The DataLoader's worker process {pid} has ended while a batch of it was on its "
                "way."
            )
        worker = _mapped[name] = _Mapped(pid, states.numpy())
    if block is not None:
        worker.blocks[number] = block
    # `lent` lives as long as the storage of the tensors below, which refers to it
    lent = worker.blocks[number].numpy().view()
    weakref.finalize(lent, _give_back, number, worker.states, os.getpid()).atexit = False
    whole = torch.from_numpy(lent)
    return [
        default_collate(values) if place is None else _part(whole, place)
        for place, values in zip(layout, numbers, strict=True)
    ]


def _give_back(number: int, states: NDArray[np.uint8], receiver: int) -> None:
    if os.getpid() != receiver:
        return  # a copy in a forked process: the batch may well be in use
    states[number] = _BACK
    _forget_ended()


def _forget_ended() -> None:
    """Unmap the blocks of workers that have ended; those of batches in use go with the batches."""
    for name, worker in list(_mapped.items()):
        if not psutil.pid_exists(worker.pid):
            _mapped.pop(name, None)
