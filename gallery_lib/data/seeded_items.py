"""Data sets whose random choices depend on (seed, epoch, index) alone.

So an item is the same in any worker, in any order and in a resumed run.
"""

from __future__ import annotations

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
        """Return the generator of an item in this epoch."""
        return of_item(self.seed, int(self._epoch), index)


def of_item(seed: int, epoch: int, index: int) -> np.random.Generator:
    """Return numpy's Philox generator of this key and counter."""
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, epoch, index]))
