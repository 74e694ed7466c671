"""Pool of float32 host memory for batches, reused once nothing refers to it any more.

The C library maps a fresh block for a batch, and every page costs a first-touch page fault. That
can cost as much as filling the block. The block of an earlier batch is mapped already. A tensor
from this pool is like any other. Its memory stays its own while the tensor, a view of it or a graph
that saved it lives.
"""

from __future__ import annotations

import math
import weakref
from collections import deque

import numpy as np
import torch
from numpy.typing import NDArray

_KEPT = 4
"""Maximum number of blocks kept without a user; a training loop needs one or two."""

_free: deque[NDArray[np.float32]] = deque(maxlen=_KEPT)


def empty(shape: tuple[int, ...]) -> torch.Tensor:
    """Return an uninitialised, contiguous float32 tensor of `shape` on the CPU."""
    count = math.prod(shape)
    block = _taken(count)
    if block is None:
        block = torch.empty(count).numpy()  # torch allocates: aligned for its kernels
    lent = block.view()  # lives as long as the tensor's storage, which refers to it
    weakref.finalize(lent, _free.append, block).atexit = False
    return torch.from_numpy(lent).view(shape)


def _taken(count: int) -> NDArray[np.float32] | None:
    """Take a free block of exactly `count` values from the pool; return None if there is none."""
    for _ in range(len(_free)):
        try:
            block = _free.popleft()  # atomic: two threads never get the same block
        except IndexError:
            return None
        if block.size == count:
            return block
        _free.append(block)
    return None
