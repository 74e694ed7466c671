"""Data-loading processes give way to the training, and no wait for them lasts forever."""

from __future__ import annotations

import os
import tempfile
from multiprocessing import process
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from gallery_lib.acceleration import accelerate, techniques
from gallery_lib.config import Config, Loader
from gallery_lib.data.loading import workers
from gallery_lib.data.loading.device_loader import DeviceLoader


def niceness(loader: DataLoader) -> set[int]:
    return {os.getpriority(os.PRIO_PROCESS, worker.pid) for worker in loader._iterator._workers}


def plain_loader(workers: int = 2, samples: int = 16) -> DataLoader:
    return DataLoader(
        TensorDataset(torch.arange(samples)),
        batch_size=2,
        num_workers=workers,
        persistent_workers=workers > 0,
    )


def of_accelerate(
    asked: int | None, workers: int = 2
) -> tuple[DataLoader, torch.nn.Module, list[int]]:
    config = Config.plain() if asked is None else Config(loader=Loader(nice=asked))
    config.compiler.enabled = False
    loader = plain_loader(workers)
    model, batches = accelerate(torch.nn.Linear(1, 1), loader, config)
    return loader, model, [int(sample) for (batch,) in batches for sample in batch]


@pytest.mark.parametrize(("asked", "expected"), [(19, 19), (5, 5), (None, 0)])
def test_the_processes_have_the_niceness_that_was_asked_for(
    asked: int | None, expected: int
) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    loader, model, samples = of_accelerate(asked)
    assert niceness(loader) == {max(expected, own)} and samples == list(range(16))
    assert os.getpriority(os.PRIO_PROCESS, 0) == own
    assert ("niceness" in techniques(model).get("loader", "")) is bool(expected)


def test_other_loaders_are_as_they_were() -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    _, model, samples = of_accelerate(19, workers=0)
    assert samples == list(range(16)) and "loader" not in techniques(model)
    loader = plain_loader()
    assert len(list(DeviceLoader(loader, torch.device("cpu"), torch.contiguous_format))) == 8
    assert niceness(loader) == {own} == {os.getpriority(os.PRIO_PROCESS, 0)}


def test_a_batch_that_cannot_be_pickled_raises_its_error() -> None:
    loader = DataLoader(
        torch.arange(64),
        num_workers=1,
        collate_fn=lambda items: lambda: items,
        worker_init_fn=workers.begin,
        timeout=60,
    )
    with pytest.raises((AttributeError, TypeError), match=r"lambda|pickle"):
        next(iter(loader))


def test_a_long_temporary_folder_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    monkeypatch.setitem(process.current_process()._config, "tempdir", None)  # type: ignore[attr-defined]
    batches = DeviceLoader(
        DataLoader(torch.arange(4), 2, num_workers=1, timeout=60),
        torch.device("cpu"),
        torch.contiguous_format,
    )
    assert torch.cat(list(batches)).tolist() == [0, 1, 2, 3]
    assert not list(long.iterdir())
