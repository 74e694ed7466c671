"""A loader whose workers begin early yields the same batches."""

from __future__ import annotations

import os

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from gallery_lib.data.loading.early_start import EarlyWorkers


class Numbers(Dataset[tuple[int, int]]):
    """Data set whose items are a number and the process that made it."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, os.getpid()


def passes(loader: DataLoader[tuple[int, int]], count: int = 3) -> list[list[int]]:
    """Return the numbers of some passes, in order."""
    return [[number for numbers, _ in loader for number in numbers.tolist()] for _ in range(count)]


def loader(kind: type[DataLoader[tuple[int, int]]], workers: int) -> DataLoader[tuple[int, int]]:
    options = {
        "num_workers": workers,
        "persistent_workers": workers > 0,
        "generator": torch.Generator().manual_seed(3),
    }
    return kind(Numbers(), 4, shuffle=True, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_batches_come_in_the_same_order(workers: int) -> None:
    early = loader(EarlyWorkers, workers)
    assert isinstance(early, EarlyWorkers)
    early.begin()
    torch.rand(5)  # a model is built meanwhile
    found = passes(early)
    assert found == passes(loader(DataLoader, workers)) == passes(loader(EarlyWorkers, workers))
    assert found[0] != found[1] and sorted(found[2]) == list(range(24))


def test_workers_are_there_before_the_first_batch_is_asked_for() -> None:
    early = loader(EarlyWorkers, 1)
    assert isinstance(early, EarlyWorkers)
    early.begin()
    (worker,) = early._iterator._workers  # type: ignore[union-attr]
    assert worker.is_alive()
    early.begin()  # once is enough
    assert {int(process) for _, processes in early for process in processes} == {worker.pid}
