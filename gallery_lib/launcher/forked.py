"""Start processes on this host without torchrun, for comparisons and measurements.

    -m gallery_lib.launcher.forked N FOLDER MODULE ARGUMENTS…

torchrun imports torch itself before it starts anything, which takes seconds, and start-up is part
of what is compared. Here the libraries are imported once, and the run's processes are forked from
the one that has them. Where there is a GPU each process starts anew, since CUDA does not survive a
fork. Each process gets torchrun's variables, and a file as rendezvous instead of a port: in the
folder of the run's sockets, or else in FOLDER.
The processes of a training run find its description in GALLERY_RUN instead of in ARGUMENTS.

When one process fails the others are ended. If several have failed meanwhile, the exit code is that
of one that was killed: the others fail because it is gone.

A run that is held (`Run.held`) stops after its imports, with the file HELD_FILE in its
folder. It goes on when the file is removed. The time in between is not part of its start-up.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import psutil

from gallery_lib.comm.rendezvous import RENDEZVOUS_FILE
from gallery_lib.errors import SilentRank
from gallery_lib.system import sockets
from gallery_lib.system.processes import (
    LAUNCHED_AT_VARIABLE,
    RENDEZVOUS_VARIABLE,
    can_fork,
    die_with_parent,
    end_descendants,
    now,
    shell_exit_code,
)
from gallery_lib.train.failure import ErrorReport
from gallery_lib.train.resolved import Run, this_run

HELD_FILE = "held"
_LOOK_SECONDS = 0.1
_HELD_LOOK_SECONDS = 0.02
_STOPPED_LOOK_SECONDS = 1.0
_PAUSE_SECONDS = 5.0
"""Longest normal time between two looks; a longer one means this process was stopped itself."""


# --------------------------------------------------------------------------------------------------
# Watch over this host's ranks, by the process that started them: who was killed, who is stopped.
#
# A killed process writes no report of its own, and other ranks may fail because it is gone. Others
# would wait forever for one that is stopped. Heartbeats (`comm/heartbeat.py`) show a silent rank
# while all train. This watch also covers start-up and the end of a run.


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
    killed = {rank: one.exit_code for rank, one in endings.items() if (one.exit_code or 0) < 0}
    return min(killed, key=lambda rank: (order.get(killed[rank] or 0, 1), rank), default=None)


def report_killed(run: Run, endings: Mapping[int, Ending]) -> bool:
    """Write a report if a signal has ended one of this host's local ranks; return whether."""
    rank = killed_rank(endings)
    if rank is None:
        return False
    process, exit_code = endings[rank]
    ErrorReport.of_killed(run.first_rank + rank, process, -(exit_code or 0)).write(run.run_dir)
    return True


def watch_stopped(run: Run, processes: Mapping[int, int]) -> None:
    """Start a daemon thread that ends each rank which has been stopped for too long.

    `processes` maps each local rank to its process id. A run of a single rank is not watched.
    """
    watch = StoppedRanks(run.config.rank_timeout, run.run_dir, run.first_rank)

    def look() -> None:
        while True:
            watch.look(processes)
            time.sleep(_STOPPED_LOOK_SECONDS)

    if run.world_size > 1:
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
        for rank in (rank for rank, since in self._stopped_at.items() if at - since > self._limit):
            reason = (
                f"rank {self._first + rank} gives no sign of life: its process {processes[rank]} "
                f"has been stopped for {self._limit:g} s (rank_timeout)"
            )
            ErrorReport(self._first + rank, SilentRank.__name__, reason).write(self._run_dir)
            with contextlib.suppress(ProcessLookupError):
                os.kill(processes[rank], signal.SIGKILL)


def _is_stopped(process: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(process).status() == psutil.STATUS_STOPPED
    return False


# --------------------------------------------------------------------------------------------------
# Starting them.


def _process(module: str, arguments: Sequence[str], environment: dict[str, str]) -> None:
    os.environ.update(environment)
    importlib.import_module(module).main(list(arguments))


def main(count: int, folder: Path, module: str, arguments: Sequence[str]) -> int:
    """Run `main(arguments)` of `module` in `count` processes; return the exit code.

    It is 0, or that of the first process that failed.
    """
    die_with_parent()
    run = this_run()
    rendezvous = Path(os.environ.get(sockets.VARIABLE, folder)) / RENDEZVOUS_FILE
    rendezvous.unlink(missing_ok=True)
    forks = can_fork()
    if forks:
        importlib.import_module("gallery_lib.launcher.worker").preload()
        importlib.import_module(module)
    if run is not None and run.held:
        began = now()
        (folder / HELD_FILE).touch()
        while (folder / HELD_FILE).exists():
            time.sleep(_HELD_LOOK_SECONDS)
        launched_at = float(os.environ[LAUNCHED_AT_VARIABLE]) + now() - began
        os.environ[LAUNCHED_AT_VARIABLE] = repr(launched_at)
    several = {RENDEZVOUS_VARIABLE: str(rendezvous.absolute())}
    several |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(count))
    processes: list[BaseProcess] = []
    try:
        for rank in range(count):
            own = {**several, **dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))}
            process = multiprocessing.get_context("fork" if forks else "spawn").Process(  # type: ignore[attr-defined]
                target=_process, args=(module, arguments, own if count > 1 else {})
            )
            process.start()
            processes.append(process)
        return _first_failure(run, processes)
    finally:
        # multiprocessing starts a process beside spawned ones, which ignores SIGTERM.
        stop = getattr(resource_tracker._resource_tracker, "_stop", None)
        if stop is not None and all(process.exitcode is not None for process in processes):
            stop()
        end_descendants()


def _first_failure(run: Run | None, processes: Sequence[BaseProcess]) -> int:
    """Wait until a process has failed or all have ended; return the exit code."""
    if run is not None:
        watch_stopped(run, {rank: process.pid or 0 for rank, process in enumerate(processes)})
    while True:
        endings = {
            rank: Ending(process.pid or 0, process.exitcode)
            for rank, process in enumerate(processes)
        }
        failed = [ending.exit_code for ending in endings.values() if ending.exit_code]
        if failed:
            killed = killed_rank(endings)
            if run is not None:
                report_killed(run, endings)
            return shell_exit_code(
                failed[0] if killed is None else endings[killed].exit_code or failed[0]
            )
        if all(ending.exit_code is not None for ending in endings.values()):
            return 0
        time.sleep(_LOOK_SECONDS)


if __name__ == "__main__":
    exit_code = main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
    sys.stdout.flush()
    sys.stderr.flush()
    # `preload` has frozen what imports made. An ordinary end would not free Triton's objects, and
    # nanobind would print each of them as leaked.
    os._exit(exit_code)
