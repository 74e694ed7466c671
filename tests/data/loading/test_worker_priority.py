"""Data-loading processes give way to the training's threads, as far as others let them run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from gallery_lib.acceleration import accelerate, techniques
from gallery_lib.config import Config, Loader
from gallery_lib.data.loading import worker_priority
from gallery_lib.data.loading.device_loader import DeviceLoader
from gallery_lib.data.loading.worker_priority import LOOK_AFTER, Background
from gallery_lib.system import hardware


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


@pytest.mark.parametrize(("asked", "expected"), [(19, 19), (5, 5), (0, 0), (None, 0)])
def test_the_processes_have_the_niceness_that_was_asked_for(
    asked: int | None, expected: int
) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    loader, model, samples = of_accelerate(asked)
    assert niceness(loader) == {max(expected, own)} and samples == list(range(16))
    assert os.getpriority(os.PRIO_PROCESS, 0) == own
    assert ("niceness" in techniques(model).get("loader", "")) is bool(expected)


def test_a_loader_without_processes_is_as_it_was() -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    _, model, samples = of_accelerate(19, workers=0)
    assert (
        samples == list(range(16))
        and os.getpriority(os.PRIO_PROCESS, 0) == own
        and "loader" not in techniques(model)
    )


def test_without_options_the_processes_stay_as_they_are() -> None:
    loader = plain_loader()
    assert len(list(DeviceLoader(loader, torch.device("cpu"), torch.contiguous_format))) == 8
    assert niceness(loader) == {os.getpriority(os.PRIO_PROCESS, 0)}


class Made:
    """A loader's iterator on a made-up clock.

    Each batch is waited for `wait` seconds, and takes `step` seconds to train on.
    """

    def __init__(self, wait: float, step: float) -> None:
        self.now, self.wait, self.step = 0.0, wait, step
        self._workers = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])]

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.now += self.wait
        return 0

    def niceness(self) -> int:
        return os.getpriority(os.PRIO_PROCESS, self._workers[0].pid)


@pytest.fixture
def made(request: pytest.FixtureRequest) -> Iterator[Made]:
    iterator = Made(*request.param)
    yield iterator
    iterator._workers[0].kill()
    iterator._workers[0].wait()


def trained_on(made: Made, share: float, monkeypatch: pytest.MonkeyPatch) -> Background:
    """Train on batches for two looks; in `share` of their waits the loading process ran."""
    background = Background(19, clock=lambda: made.now)
    steps = 0
    monkeypatch.setattr(worker_priority, "seconds_run", lambda processes: share * made.wait * steps)
    for _ in background.batches(made):
        made.now += made.step
        steps += 1
        if steps == 2 * LOOK_AFTER + 1:
            return background
    raise AssertionError("the batches ended")


CASES = {
    "others have the cores": ((3.0, 1.0), 0.02, True),
    "loading takes longer than training": ((3.0, 1.0), 0.95, False),
    "training hardly waits": ((0.5, 1.0), 0.02, False),
}


@pytest.mark.parametrize(("made", "share", "back"), CASES.values(), ids=CASES, indirect=["made"])
def test_the_priority_is_given_back_where_others_have_the_cores(
    made: Made, share: float, back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if back and os.geteuid() != 0:
        pytest.skip("only root may raise a process's priority: run as root")
    background = trained_on(made, share, monkeypatch)
    assert background.given_back is back
    assert made.niceness() == (os.getpriority(os.PRIO_PROCESS, 0) if back else 19)


@pytest.mark.parametrize("made", [(3.0, 1.0)], indirect=True)
def test_who_may_not_give_it_back_is_told_what_to_do(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.setpriority

    def refuse(which: int, who: int, priority: int) -> None:
        if priority < 19:
            raise PermissionError
        real(which, who, priority)

    monkeypatch.setattr(worker_priority.os, "setpriority", refuse)
    with pytest.warns(
        UserWarning, match=r"70% of the time .* a core for only 2% of it.*config\.loader\.nice = 0"
    ) as said:
        assert trained_on(made, 0.02, monkeypatch).given_back
    assert len(said) == 1 and made.niceness() == 19


class Worked(torch.utils.data.Dataset):
    """Data set whose samples each take 5 ms of a core."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> torch.Tensor:
        until = time.process_time() + 0.005
        while time.process_time() < until:
            pass
        return torch.tensor(index)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0, reason="only root may raise a process's priority: run as root"
)
def test_beside_programs_that_keep_all_cores_busy_loading_goes_on() -> None:
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(2 * hardware.cores())
    ]
    try:
        loader = DataLoader(Worked(), num_workers=1)
        batches = DeviceLoader(loader, torch.device("cpu"), torch.contiguous_format, Loader())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            needed = next(
                number for number, _ in enumerate(batches) if batches._background.given_back
            )
        assert needed == LOOK_AFTER
    finally:
        for each in busy:
            each.kill()
            each.wait()
