"""Float32 memory on the host for batches, used again when nothing refers to it any more.

A fresh block of a batch's size is mapped by the C library and paid for page by page, which can cost as much as filling it;
the block of a batch that has ended is there already. A tensor from here is like any other: as long as it, a view of it or
a graph that saved it lives, its memory is its own.
"""

from __future__ import annotations

import math
import weakref
from collections import deque

import numpy as np
import torch
from numpy.typing import NDArray

_KEPT = 4
"""Blocks that are kept without a user, at most; a loop of training needs one or two."""

_free: deque[NDArray[np.float32]] = deque(maxlen=_KEPT)


def empty(shape: tuple[int, ...]) -> torch.Tensor:
    """An uninitialised, contiguous float32 tensor of `shape` on the CPU."""
    count = math.prod(shape)
    block = _taken(count)
    if block is None:
        block = torch.empty(count).numpy()  # torch's own allocation: aligned as its kernels like it
    lent = block.view()  # lives as long as the tensor's storage, which refers to it
    weakref.finalize(lent, _free.append, block).atexit = False
    return torch.from_numpy(lent).view(shape)


def _taken(count: int) -> NDArray[np.float32] | None:
    """A free block of exactly `count` values, no longer free; None when there is none."""
    for _ in range(len(_free)):
        try:
            block = _free.popleft()  # one step, so that two threads never get the same block
        except IndexError:
            return None
        if block.size == count:
            return block
        _free.append(block)
    return None
