"""A loader that is no longer used is freed at once, and its workers end: nothing keeps it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from gallery_lib import Config, accelerate
from gallery_lib.checkpoint import Checkpoint
from gallery_lib.data.loading.progress import follow


@pytest.fixture(autouse=True)
def nothing_is_collected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def with_workers() -> DataLoader[Any]:
    return DataLoader(torch.ones(8, 4), batch_size=2, num_workers=2, persistent_workers=True)


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def followed(folder: Path) -> None:
    loader = with_workers()
    progress = follow(loader)
    for _ in loader:
        break
    assert progress.taken == 1


def with_checkpoints(folder: Path) -> None:
    (model, optimizer), loader = model_and_optimizer(), with_workers()
    checkpoint = Checkpoint(folder, model=model, optimizer=optimizer, loader=loader, every=2)
    for _ in loader:
        checkpoint.step()
    checkpoint.close()
    assert checkpoint.epoch == 1


def accelerated(folder: Path) -> None:
    config = Config()
    config.compiler.enabled = False
    _, loader = accelerate(model_and_optimizer()[0], with_workers(), config=config)
    for _ in loader:
        break


@pytest.mark.parametrize("use", [followed, with_checkpoints, accelerated])
def test_workers_that_stay_end_with_the_last_user_of_their_loader(
    use: Callable[[Path], None], tmp_path: Path
) -> None:
    before = set(psutil.Process().children())
    use(tmp_path)
    assert set(psutil.Process().children()) <= before


def test_without_its_progress_a_loader_goes_on_as_it_was() -> None:
    loader = DataLoader(torch.arange(4))
    progress = follow(loader)
    assert len(list(loader)) == 4 and progress.passes == 1
    del progress
    assert torch.equal(torch.cat(list(loader)), torch.arange(4))
