"""Watch over this host's ranks, by the process that started them: who was killed, who is stopped.

A killed process writes no report of its own, and other ranks may fail because it is gone. Others
would wait forever for one that is stopped. Heartbeats (`comm/heartbeat.py`) show a silent rank to
the other ranks while these train. This watch also covers start-up and the end of a run, when no
rank waits for another.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import psutil

from gallery_lib.errors import SilentRank
from gallery_lib.launcher.description import RunDescription
from gallery_lib.system.processes import now
from gallery_lib.train.failure import ErrorReport

_LOOK_SECONDS = 1.0
_PAUSE_SECONDS = 5.0
"""Longest normal time between two looks; a longer one means this process was stopped itself."""


class Ending(NamedTuple):
    """The end of a rank's process."""

    process: int
    exit_code: int | None  # negative: the number of the signal that ended it; None: still running


def killed_rank(endings: Mapping[int, Ending]) -> int | None:
    """Return the local rank to blame among those that signals have ended at one look, or None.

    SIGKILL comes first: it is the signal of somebody else, or of the kernel when memory runs out.
    SIGTERM comes last, since a starter ends the other ranks with it.
    """
    order = {-signal.SIGKILL: 0, -signal.SIGTERM: 2}
    killed = [rank for rank, ending in endings.items() if (ending.exit_code or 0) < 0]
    return min(
        killed, key=lambda rank: (order.get(endings[rank].exit_code or 0, 1), rank), default=None
    )


def report_killed(run: RunDescription, endings: Mapping[int, Ending]) -> bool:
    """Write a report to the run's folder if a signal has ended a rank; return whether one has.

    `endings` are those of this host's processes, by local rank.
    """
    rank = killed_rank(endings)
    if rank is None:
        return False
    process, exit_code = endings[rank]
    ErrorReport.of_killed(run.first_rank + rank, process, -(exit_code or 0)).write(run.run_dir)
    return True


def watch_stopped(run: RunDescription, processes: Mapping[int, int]) -> None:
    """Start a daemon thread that ends each rank which has been stopped for too long.

    `processes` maps each local rank to its process id. A run of a single rank is not watched.
    """
    if run.world_size == 1:
        return
    watch = StoppedRanks(run.config.rank_timeout, run.run_dir, run.first_rank)

    def look() -> None:
        while True:
            watch.look(processes)
            time.sleep(_LOOK_SECONDS)

    threading.Thread(target=look, daemon=True).start()


class StoppedRanks:
    """Search for ranks that are stopped. A run whose ranks are all stopped was paused by somebody.

    Args:
        limit_seconds: how long a rank may be stopped.
        run_dir: folder of the run, for the error report.
        first_rank: global rank of local rank 0.
    """

    def __init__(self, limit_seconds: float, run_dir: Path, first_rank: int = 0) -> None:
        self._limit, self._run_dir, self._first = limit_seconds, run_dir, first_rank
        self._looked = now()
        self._stopped_at: dict[int, float] = {}

    def look(self, processes: Mapping[int, int]) -> None:
        """Report and kill each rank that has been stopped for too long, ended ranks left out."""
        at = now()
        pause, self._looked = at - self._looked, at
        stopped = {rank for rank, process in processes.items() if _is_stopped(process)}
        if pause > _PAUSE_SECONDS or len(stopped) == len(processes):
            stopped = set()
        self._stopped_at = {rank: self._stopped_at.get(rank, at) for rank in stopped}
        for rank, since in self._stopped_at.items():
            if at - since > self._limit:
                self._end(self._first + rank, processes[rank])

    def _end(self, rank: int, process: int) -> None:
        reason = (
            f"rank {rank} gives no sign of life: its process {process} has been stopped for "
            f"{self._limit:g} s (rank_timeout)"
        )
        ErrorReport(rank, SilentRank.__name__, reason).write(self._run_dir)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _is_stopped(process: int) -> bool:
    try:
        return psutil.Process(process).status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False
