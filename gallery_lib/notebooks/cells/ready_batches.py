"""A task's data set whose batches are finished when they are collated: what the model takes.

The gallery's own loader finishes batches on the device. A notebook's plain loop has no such loader.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset, default_collate


class ReadyBatches(Dataset[Any]):
    """The items of a task's data set, with a `collate` that makes a batch as the model takes it."""

    def __init__(self, items: Any) -> None:
        """Take the data set of a task."""
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]

    def set_epoch(self, epoch: int) -> None:
        """Hand the epoch on to a data set that asks for it."""
        if hasattr(self.items, "set_epoch"):
            self.items.set_epoch(epoch)

    def collate(self, items: list[Any]) -> Any:
        """Return the batch of these items, finished, on the CPU."""
        batch = getattr(self.items, "collate", default_collate)(items)
        if not hasattr(self.items, "finish_batch"):
            return batch
        return self.items.finish_batch(batch, torch.contiguous_format)
