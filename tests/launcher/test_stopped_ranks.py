"""A stopped rank is named and ended, but a run that somebody has paused is not."""

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

from gallery_lib.errors import SilentRank
from gallery_lib.launcher.description import RunDescription
from gallery_lib.launcher.stopped_ranks import StoppedRanks, StoppedStarters
from gallery_lib.train.resolved import resolve

LIMIT_SECONDS = 2.0


@pytest.fixture
def ranks() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Yield two processes that stand for ranks."""
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
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


def test_the_stopped_one_is_ended_and_named(ranks, tmp_path: Path) -> None:
    ranks[1].send_signal(signal.SIGSTOP)
    watched(StoppedRanks(LIMIT_SECONDS, tmp_path, first_rank=4), ranks, LIMIT_SECONDS + 3)
    assert ranks[1].poll() == -signal.SIGKILL and ranks[0].poll() is None
    report = json.loads((tmp_path / "error-rank5.json").read_text())
    assert report["type"] == "SilentRank"
    said = f"rank 5 gives no sign of life: its process {ranks[1].pid} has been stopped for 2 s"
    assert report["message"].startswith(said)


@pytest.mark.slow
def test_the_last_one_is_ended_when_the_others_have_ended(ranks, tmp_path: Path) -> None:
    ranks[0].kill()
    ranks[1].send_signal(signal.SIGSTOP)
    watched(StoppedRanks(LIMIT_SECONDS, tmp_path), ranks, LIMIT_SECONDS + 3)
    assert ranks[1].poll() == -signal.SIGKILL


@pytest.mark.slow
def test_a_run_that_was_paused_as_a_whole_goes_on(ranks, tmp_path: Path) -> None:
    watch = StoppedRanks(LIMIT_SECONDS, tmp_path)
    for one in ranks:
        one.send_signal(signal.SIGSTOP)
    watched(watch, ranks, LIMIT_SECONDS + 2)
    for one in ranks:
        one.send_signal(signal.SIGCONT)
    watched(watch, ranks, 1.5)
    assert [one.poll() for one in ranks] == [None, None] and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_time_in_which_the_watch_itself_was_stopped_does_not_count(ranks, tmp_path: Path) -> None:
    watch = StoppedRanks(LIMIT_SECONDS, tmp_path)
    ranks[1].send_signal(signal.SIGSTOP)
    watched(watch, ranks, 1.2)
    time.sleep(6)
    watched(watch, ranks, 1.2)
    assert ranks[1].poll() is None


@pytest.fixture
def starters() -> Iterator[list[psutil.Process]]:
    """Yield processes that stand for a supervisor, torchrun and a rank, each the child of one."""
    with subprocess.Popen(["sh", "-c", "sh -c 'sleep 60; :'; :"]) as supervisor:
        process = psutil.Process(supervisor.pid)
        while len(below := process.children(recursive=True)) < 2:
            time.sleep(0.02)
        yield [process, *below]
        for one in (*below, process):
            one.kill()


def starters_watched(watch: StoppedStarters, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        watch.look()
        time.sleep(0.1)


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_stopped_process_that_starts_ranks_is_said_and_ends_the_run(
    starters: list[psutil.Process], stopped: int
) -> None:
    watch, process = StoppedStarters(starters[0].pid, LIMIT_SECONDS), starters[stopped]
    starters_watched(watch, 1.2)
    process.suspend()
    with pytest.raises(SilentRank, match=f"process {process.pid}, .*stopped for 2 s"):
        starters_watched(watch, LIMIT_SECONDS + 3)
    assert [f"kill -CONT {process.pid}" in note for note in watch.notes] == [True]


@pytest.mark.slow
def test_a_run_whose_ranks_are_stopped_with_what_starts_them_is_left_alone(
    starters: list[psutil.Process],
) -> None:
    watch = StoppedStarters(starters[0].pid, LIMIT_SECONDS)
    for one in starters:
        one.suspend()
    starters_watched(watch, LIMIT_SECONDS + 2)
    assert watch.notes == []


def test_several_ranks_are_watched_and_one_is_not(tmp_path: Path) -> None:
    config = resolve(tiny_config(rank_timeout=30.0), local_processes=2, run_dir=str(tmp_path))
    run = RunDescription(config, world_size=1, local_processes=1)
    assert StoppedRanks.of(run) is None
    run = RunDescription(config, world_size=4, local_processes=2, host=1)
    assert run.first_rank == 2 and StoppedRanks.of(run) is not None
