"""No wait for a batch lasts forever: a lost one raises, and a loader that stands still is told."""

from __future__ import annotations

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
from torch.utils.data import DataLoader

from gallery_lib.data.loading import waiting
from gallery_lib.data.loading.device_loader import DeviceLoader
from gallery_lib.data.loading.waiting import LoaderWatch


def loader(collate: Any) -> DataLoader[Any]:
    return DataLoader(
        *(torch.arange(64), 1),
        num_workers=1,
        collate_fn=collate,
        worker_init_fn=waiting.begin,
        timeout=60,
    )


def test_a_batch_that_cannot_be_pickled_raises_its_error() -> None:
    with pytest.raises((AttributeError, TypeError), match=r"lambda|pickle"):
        next(iter(loader(lambda items: lambda: items)))


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
        said, reasons, below = watched(loader(), stop)
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
