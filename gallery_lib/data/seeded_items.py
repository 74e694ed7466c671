"""Data sets whose random choices depend on (seed, epoch, index) alone.

So an item is the same in any worker, in any order and in a resumed run.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import TypeVar

import numpy as np
import torch
from torch.utils.data import Dataset

T = TypeVar("T")


class SeededItems(Dataset[T], ABC):
    """Map-style data set of items that `_item(index)` makes with random numbers of `rng(index)`.

    In training each epoch has other numbers: call `set_epoch` before it. Held-out items always have
    the same.
    """

    def __init__(self, train: bool, seed: int) -> None:
        self.train, self.seed = train, seed if train else 0
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def _item(self, index: int) -> T: ...

    def __getitem__(self, index: int) -> T:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is outside a data set of {len(self)} items")
        return self._item(index % len(self))

    def set_epoch(self, epoch: int) -> None:
        """Draw the training items of `epoch` from now on, also in workers that already run."""
        if self.train:
            self._epoch.fill_(epoch)

    def rng(self, index: int) -> np.random.Generator:
        """Return the generator of an item, valid until the thread asks for its next one."""
        return of_item(self.seed, int(self._epoch), index)


class _Generator(threading.local):
    """Random generator of one thread; each item sets its key and counter anew.

    Making a generator asks the system for entropy, which takes longer.
    """

    def __init__(self) -> None:
        self.bits = np.random.Philox(key=0)
        self.state = self.bits.state  # as it is before the first number
        self.generator = np.random.Generator(self.bits)


_of_thread = _Generator()


def of_item(seed: int, epoch: int, index: int) -> np.random.Generator:
    """Return numpy's Philox generator of this key and counter; each call takes back the last."""
    state = _of_thread.state["state"]
    state["key"][:] = seed % 2**64, (seed >> 64) % 2**64
    state["counter"][:] = 0, 0, epoch, index
    _of_thread.bits.state = _of_thread.state
    return _of_thread.generator
