"""Data set of numbers, some of which cannot be read."""

from __future__ import annotations

from torch.utils.data import Dataset

DATA = list(range(20))


class Numbers(Dataset[int]):
    """Data set whose items say when they cannot be read."""

    def __init__(self, broken: int | None = None) -> None:
        self.broken = broken

    def __len__(self) -> int:
        return len(DATA)

    def __getitem__(self, index: int) -> int:
        if index == self.broken:
            raise FileNotFoundError(f"sample {index}")
        return index
