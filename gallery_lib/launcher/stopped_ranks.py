"""Find processes of a run that are stopped, and end them: others would wait for them forever.

Heartbeats (`comm/heartbeat.py`) show a silent rank to the other ranks while these train. This watch
belongs to the process that started the ranks. So it also covers start-up and the end of a run, when
no rank waits for another. The launcher watches that process. A run whose ranks are all stopped is
left alone: somebody has paused it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from gallery_lib.errors import SilentRank
from gallery_lib.launcher.description import RunDescription
from gallery_lib.system.processes import now
from gallery_lib.train.failure import ErrorReport

_LOOK_SECONDS = 1.0
_PAUSE_SECONDS = 5.0
"""Longest normal time between two looks; a longer one means this process was stopped itself."""


class StoppedRanks:
    """Watch over the ranks that this process has started.

    Args:
        limit_seconds: how long a rank may be stopped.
        run_dir: folder of the run, for the error report.
        first_rank: global rank of local rank 0.
    """

    def __init__(self, limit_seconds: float, run_dir: Path, first_rank: int = 0) -> None:
        self._limit, self._run_dir, self._first = limit_seconds, run_dir, first_rank
        self._looked = now()
        self._stopped_at: dict[int, float] = {}

    @classmethod
    def of(cls, run: RunDescription) -> StoppedRanks | None:
        """Return the watch of a run over this host's ranks; None for a run of a single rank."""
        if run.world_size == 1:
            return None
        return cls(run.config.rank_timeout, run.run_dir, run.first_rank)

    def look(self, processes: Mapping[int, int]) -> None:
        """Report and kill each rank that has been stopped for too long.

        `processes` maps each local rank to its process id, also after the process has ended. Cheap
        enough to be called in every round of a waiting loop.
        """
        at = now()
        pause = at - self._looked
        if pause < _LOOK_SECONDS:
            return
        self._looked = at
        stopped = {rank for rank, process in processes.items() if _is_stopped(process)}
        if pause > _PAUSE_SECONDS or len(stopped) == len(processes):
            stopped = set()
        self._stopped_at = {rank: self._stopped_at.get(rank, at) for rank in stopped}
        for rank, since in self._stopped_at.items():
            if at - since > self._limit:
                self._end(self._first + rank, processes[rank])

    def watch(self, processes: Mapping[int, int]) -> None:
        """Look in a thread of its own from now on, for a waiting loop that may block."""

        def look() -> None:
            while True:
                self.look(processes)
                time.sleep(_LOOK_SECONDS)

        threading.Thread(target=look, daemon=True).start()

    def _end(self, rank: int, process: int) -> None:
        reason = (
            f"rank {rank} gives no sign of life: its process {process} has been stopped for "
            f"{self._limit:g} s (rank_timeout)"
        )
        ErrorReport(rank, SilentRank.__name__, reason).write(self._run_dir)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


class StoppedStarters:
    """Watch of a launcher over what starts the ranks: the supervisor, and the child of it."""

    def __init__(self, supervisor: int, limit_seconds: float) -> None:
        self._supervisor, self._limit = supervisor, limit_seconds
        self._starter: int | None = None
        self._looked = now()
        self._stopped_at: float | None = None
        self.notes: list[str] = []  # lines for who waits for the run

    def look(self) -> None:
        """Look once a second whether one is stopped while ranks go on.

        Raises:
            SilentRank: when it has been stopped for too long.
        """
        at = now()
        pause = at - self._looked
        if pause < _LOOK_SECONDS:
            return
        self._looked = at
        if self._starter is None:
            self._starter = next(iter(_below(self._supervisor)), None)
        starters = filter(None, (self._supervisor, self._starter))
        stopped = next((process for process in starters if _is_stopped(process)), None)
        ranks = _below(self._starter) if stopped and self._starter else []
        if stopped is None or pause > _PAUSE_SECONDS or (ranks and all(map(_is_stopped, ranks))):
            self._stopped_at = None
            return
        what = f"process {stopped}, which starts the ranks,"
        limit = f"{self._limit:g} s (rank_timeout)"
        if self._stopped_at is None:
            self._stopped_at = at
            self.notes.append(
                f"{what} is stopped: the run is ended after {limit}. "
                f"`kill -CONT {stopped}` lets it go on"
            )
        elif at - self._stopped_at > self._limit:
            raise SilentRank(f"{what} has been stopped for {limit}: the run has been ended.")


def _below(process: int) -> list[int]:
    """Return the processes below this one, its first child first."""
    try:
        below = psutil.Process(process).children(recursive=True)
        return [one.pid for one in below if one.status() != psutil.STATUS_ZOMBIE]
    except psutil.Error:
        return []


def _is_stopped(process: int) -> bool:
    try:
        return psutil.Process(process).status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False
