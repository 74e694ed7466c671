"""Data-loading processes give way to the training, and no wait for them lasts forever."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing import process
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from gallery_lib.acceleration import accelerate, techniques
from gallery_lib.config import Config, Loader
from gallery_lib.data.loading import workers
from gallery_lib.data.loading.device_loader import DeviceLoader
from gallery_lib.data.loading.workers import LOOK_AFTER, Background, LoaderWatch
from gallery_lib.train.failure import what_ran_out


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
    monkeypatch.setattr(workers, "seconds_run", lambda processes: share * made.wait * steps)
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

    monkeypatch.setattr(workers.os, "setpriority", refuse)
    with pytest.warns(
        UserWarning, match=r"70% of the time .* a core for only 2% of it.*config\.loader\.nice = 0"
    ) as said:
        assert trained_on(made, 0.02, monkeypatch).given_back
    assert len(said) == 1 and made.niceness() == 19


def handing_over(collate: Any, *, files: int | None = None) -> DataLoader[Any]:
    """Return a loader whose process may open as many files as it has open and `files` more."""

    def begin(worker: int) -> None:
        workers.begin(worker)
        if files is not None:
            limit = len(list(Path("/proc/self/fd").iterdir())) + files
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    return DataLoader(
        torch.arange(64), 1, num_workers=1, collate_fn=collate, worker_init_fn=begin, timeout=60
    )


def test_a_batch_that_cannot_be_pickled_raises_its_error() -> None:
    with pytest.raises((AttributeError, TypeError), match=r"lambda|pickle"):
        next(iter(handing_over(lambda items: lambda: items)))


@pytest.mark.parametrize("files", [0, 2])
def test_a_loading_process_that_can_open_no_more_files_names_the_limit(files: int) -> None:
    batches = iter(handing_over(lambda items: [torch.ones(4) for _ in range(8)], files=files))
    with pytest.raises((RuntimeError, OSError)) as raised:
        next(batches)
    said = what_ran_out(raised.value)
    assert said is not None and "`ulimit -n`" in said


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


LIMIT_SECONDS = 2.0


def watched(loader: Iterator[int], stop: threading.Event) -> tuple[list[str], list[str], list[int]]:
    """Return what was said, the reason and the processes to end, when the loader has ended."""
    said: list[str] = []
    reasons: list[str] = []
    below: list[int] = []

    def end(reason: str, processes: list[int]) -> None:
        reasons.append(reason)
        below.extend(processes)
        stop.set()

    watch = LoaderWatch(LIMIT_SECONDS, 3, said.append, end)
    assert list(watch.batches(loader)) == [0, 1]
    watch.stop()
    return said, reasons, below


def test_a_stopped_loading_process_is_named_once_and_then_ends_the_run() -> None:
    stop = threading.Event()

    def loader() -> Iterator[int]:
        yield 0
        assert stop.wait(60)
        yield 1

    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        process.send_signal(signal.SIGSTOP)
        try:
            said, reasons, below = watched(loader(), stop)
        finally:
            process.kill()
    standstill = f"the loader of rank 3 stands still (process {process.pid} is stopped)"
    assert len(said) == 1 and standstill in said[0] and "rank_timeout" in said[0]
    assert len(reasons) == 1 and standstill in reasons[0] and process.pid in below


def test_a_batch_that_is_being_made_may_take_longer_than_the_limit() -> None:
    def loader() -> Iterator[int]:
        yield 0
        began = time.monotonic()
        while time.monotonic() - began < 1.5 * LIMIT_SECONDS:
            sum(range(1000))
        yield 1

    said, reasons, _ = watched(loader(), threading.Event())
    assert not said and not reasons
