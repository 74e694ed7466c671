"""Killed ranks are named; a stopped one is ended, but a run that somebody has paused is not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tiny_task import config as tiny_config

from gallery_lib.launcher import forked
from gallery_lib.launcher.forked import Ending, StoppedRanks, report_killed
from gallery_lib.system.json_files import read_json
from gallery_lib.train.failure import ErrorReport
from gallery_lib.train.resolved import Run, resolve

LIMIT_SECONDS = 2.0


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Yield two processes that stand for ranks."""
    command = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    processes = [subprocess.Popen(command) for _ in range(2)]
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def watched(watch: StoppedRanks, ranks: list[subprocess.Popen[bytes]], seconds: float) -> None:
    """Look as a waiting loop does."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        watch.look({n: one.pid for n, one in enumerate(ranks)})
        time.sleep(0.1)


def test_the_stopped_one_is_ended_and_named(processes, tmp_path: Path) -> None:
    processes[1].send_signal(signal.SIGSTOP)
    watched(StoppedRanks(LIMIT_SECONDS, tmp_path, first_rank=4), processes, LIMIT_SECONDS + 3)
    assert processes[1].poll() == -signal.SIGKILL and processes[0].poll() is None
    report = json.loads((tmp_path / "error-rank5.json").read_text())
    assert report["type"] == "SilentRank"
    said = f"rank 5 gives no sign of life: its process {processes[1].pid} has been stopped for 2 s"
    assert report["message"].startswith(said)


@pytest.mark.slow
def test_a_run_that_was_paused_as_a_whole_goes_on(processes, tmp_path: Path) -> None:
    watch = StoppedRanks(LIMIT_SECONDS, tmp_path)
    for one in processes:
        one.send_signal(signal.SIGSTOP)
    watched(watch, processes, LIMIT_SECONDS + 2)
    for one in processes:
        one.send_signal(signal.SIGCONT)
    watched(watch, processes, 1.5)
    assert [one.poll() for one in processes] == [None, None] and not list(tmp_path.iterdir())


def test_a_pause_of_the_watch_itself_does_not_count_and_the_last_rank_is_ended(
    processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes[0].kill()
    processes[0].wait()
    processes[1].send_signal(signal.SIGSTOP)
    while psutil.Process(processes[1].pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    times = iter((0.0, 0.0, 1.2, 7.2, 8.4, 9.6, 10.8))
    monkeypatch.setattr(forked, "now", lambda: next(times))
    watch = StoppedRanks(LIMIT_SECONDS, tmp_path)
    for _ in range(5):
        watch.look({n: one.pid for n, one in enumerate(processes)})
        assert not list(tmp_path.iterdir())
    watch.look({n: one.pid for n, one in enumerate(processes)})
    assert processes[1].wait(timeout=20) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("codes", "blamed"),
    [
        ((None, None), None),
        ((1, None), None),
        ((1, -signal.SIGKILL), 1),
        ((-signal.SIGTERM, -signal.SIGKILL), 1),
        ((-signal.SIGTERM, -signal.SIGABRT), 1),
        ((-signal.SIGABRT, -signal.SIGKILL), 1),
        ((-signal.SIGKILL, -signal.SIGKILL), 0),
    ],
)
def test_the_one_that_somebody_else_has_killed_is_reported_by_its_rank_in_the_run(
    codes: tuple[int | None, ...], blamed: int | None, tmp_path: Path
) -> None:
    resolved = resolve(tiny_config(), local_processes=2, run_dir=str(tmp_path))
    run = Run(resolved, world_size=4, local_processes=2, host=1)
    endings = {rank: Ending(100 + rank, code) for rank, code in enumerate(codes)}
    assert report_killed(run, endings) == (blamed is not None)
    reports = [read_json(path, ErrorReport, again="") for path in tmp_path.iterdir()]
    assert [report.rank for report in reports] == ([] if blamed is None else [2 + blamed])
    assert all(f"process {100 + (blamed or 0)}" in report.message for report in reports)
