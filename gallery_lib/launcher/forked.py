"""Start processes on this host without torchrun, for comparisons and measurements.

    -m gallery_lib.launcher.forked N FOLDER MODULE ARGUMENTS…

The libraries are imported once, and the run's processes are forked from the one that has them.
Where there is a GPU each process starts anew, since CUDA does not survive a fork. Each gets
torchrun's variables, and a file as rendezvous: in the folder of the run's sockets, or else in
FOLDER. Those of a training run find its description in GALLERY_RUN instead of in ARGUMENTS.

When one process fails the others are ended. If several have failed meanwhile, the exit code is that
of one that was killed: the others fail because it is gone.

A run that is held (`Run.held`) stops after its imports, and goes on when HELD_FILE in its folder is
removed. The time in between is not part of its start-up.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

from gallery_lib.comm.rendezvous import RENDEZVOUS_FILE
from gallery_lib.system.processes import (
    HEARS_NOTICE_VARIABLE,
    LAUNCHED_AT_VARIABLE,
    RENDEZVOUS_VARIABLE,
    SOCKETS_VARIABLE,
    can_fork,
    die_with_parent,
    end_descendants,
    now,
    shell_exit_code,
)
from gallery_lib.train.failure import ErrorReport
from gallery_lib.train.resolved import this_run

HELD_FILE = "held"
_LOOK_SECONDS = 0.1
_HELD_LOOK_SECONDS = 0.02


class Ending(NamedTuple):
    """The end of a rank's process."""

    process: int
    exit_code: int | None  # negative: the number of the signal that ended it; None: still running


def report_killed(
    endings: Mapping[int, Ending], run_dir: Path | None, first_rank: int
) -> int | None:
    """Return the local rank to blame among those that signals have ended, or None; report it.

    The report goes to the run's folder, where there is one, with the rank in the run: this host's
    ranks begin at `first_rank`.

    A killed process writes no report of its own. SIGKILL comes first: it is the signal of somebody
    else, or of the kernel when memory runs out. SIGTERM comes last, since a starter ends the other
    ranks with it.
    """
    order = {-signal.SIGKILL: 0, -signal.SIGTERM: 2}
    killed = {rank: one.exit_code for rank, one in endings.items() if (one.exit_code or 0) < 0}
    rank = min(killed, key=lambda rank: (order.get(killed[rank] or 0, 1), rank), default=None)
    if rank is not None and run_dir is not None:
        process, exit_code = endings[rank]
        ErrorReport.of_killed(first_rank + rank, process, -(exit_code or 0)).write(run_dir)
    return rank


def _process(module: str, arguments: Sequence[str], environment: dict[str, str]) -> None:
    os.environ.update(environment)
    importlib.import_module(module).main(list(arguments))


def main(count: int, folder: Path, module: str, arguments: Sequence[str]) -> int:
    """Run `main(arguments)` of `module` in `count` processes; return the exit code.

    It is 0, or that of the process to blame.
    """
    die_with_parent()
    run = this_run()
    if can_fork():
        importlib.import_module("gallery_lib.launcher.worker").preload()
        importlib.import_module(module)
    if run is not None and run.held:
        began = now()
        (folder / HELD_FILE).touch()
        while (folder / HELD_FILE).exists():
            time.sleep(_HELD_LOOK_SECONDS)
        launched_at = float(os.environ[LAUNCHED_AT_VARIABLE]) + now() - began
        os.environ[LAUNCHED_AT_VARIABLE] = repr(launched_at)
    rendezvous = Path(os.environ.get(SOCKETS_VARIABLE, folder)) / RENDEZVOUS_FILE
    rendezvous.unlink(missing_ok=True)
    several = {
        RENDEZVOUS_VARIABLE: str(rendezvous.absolute()),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
    }
    context = multiprocessing.get_context("fork" if can_fork() else "spawn")
    processes: list[BaseProcess] = []
    try:
        for rank in range(count):
            own = {**several, **dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))}
            process = context.Process(  # type: ignore[attr-defined]
                target=_process, args=(module, arguments, own if count > 1 else {})
            )
            process.start()
            processes.append(process)
        run_dir, first_rank = (run.run_dir, run.first_rank) if run is not None else (None, 0)
        return _first_failure(processes, run_dir, first_rank)
    finally:
        # multiprocessing starts a process beside spawned ones, which ignores SIGTERM.
        stop = getattr(resource_tracker._resource_tracker, "_stop", None)
        if stop is not None and all(process.exitcode is not None for process in processes):
            stop()
        # Ranks that take SIGTERM for a notice could save nothing without those that are gone.
        end_descendants(*([0.0] if HEARS_NOTICE_VARIABLE in os.environ else []))


def _first_failure(processes: Sequence[BaseProcess], run_dir: Path | None, first_rank: int) -> int:
    while True:
        endings = {n: Ending(one.pid or 0, one.exitcode) for n, one in enumerate(processes)}
        failed = [ending.exit_code for ending in endings.values() if ending.exit_code]
        if failed:
            killed = report_killed(endings, run_dir, first_rank)
            code = failed[0] if killed is None else endings[killed].exit_code
            return shell_exit_code(code or failed[0])
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
