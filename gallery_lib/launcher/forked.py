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

A run that is held (`RunDescription.held`) stops after its imports, with the file HELD_FILE in its
folder. It goes on when the file is removed. The time in between is not part of its start-up.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path

from gallery_lib.comm.rendezvous import RENDEZVOUS_FILE
from gallery_lib.launcher import description, ranks
from gallery_lib.launcher.description import RunDescription
from gallery_lib.launcher.ranks import Ending
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

HELD_FILE = "held"
_LOOK_SECONDS = 0.1
_HELD_LOOK_SECONDS = 0.02


def _environment(rank: int, processes: int, rendezvous: Path) -> dict[str, str]:
    if processes == 1:
        return {}
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        RENDEZVOUS_VARIABLE: str(rendezvous.absolute()),
    }


def _wait_while_held(folder: Path) -> None:
    """Wait until a held run is released; move the launch time forward by the wait."""
    began = now()
    (folder / HELD_FILE).touch()
    while (folder / HELD_FILE).exists():
        time.sleep(_HELD_LOOK_SECONDS)
    os.environ[LAUNCHED_AT_VARIABLE] = repr(float(os.environ[LAUNCHED_AT_VARIABLE]) + now() - began)


def _process(module: str, arguments: Sequence[str], environment: dict[str, str]) -> None:
    """Run `main(arguments)` of the module in one of the processes, which it ends."""
    os.environ.update(environment)
    importlib.import_module(module).main(list(arguments))


def main(count: int, folder: Path, module: str, arguments: Sequence[str]) -> int:
    """Run `main(arguments)` of `module` in `count` processes; return the exit code.

    It is 0, or that of the first process that failed.
    """
    die_with_parent()
    run = description.of_this_run()
    rendezvous = Path(os.environ.get(sockets.VARIABLE, folder)) / RENDEZVOUS_FILE
    rendezvous.unlink(missing_ok=True)
    forks = can_fork()
    if forks:
        importlib.import_module("gallery_lib.launcher.worker").preload()
        importlib.import_module(module)
    if run is not None and run.held:
        _wait_while_held(folder)
    context = multiprocessing.get_context("fork" if forks else "spawn")
    processes = [
        context.Process(  # type: ignore[attr-defined]
            target=_process, args=(module, arguments, _environment(rank, count, rendezvous))
        )
        for rank in range(count)
    ]
    try:
        for process in processes:
            process.start()
        return _first_failure(run, processes)
    finally:
        if all(process.exitcode is not None for process in processes if process.pid):
            _end_resource_tracker()
        end_descendants()


def _end_resource_tracker() -> None:
    """End the process that multiprocessing starts beside spawned ones; it ignores SIGTERM."""
    if stop := getattr(resource_tracker._resource_tracker, "_stop", None):
        stop()


def _first_failure(run: RunDescription | None, processes: Sequence[BaseProcess]) -> int:
    """Wait until a process has failed or all have ended; return the exit code."""
    if run is not None:
        pids = {rank: process.pid or 0 for rank, process in enumerate(processes)}
        ranks.watch_stopped(run, pids)
    while True:
        endings = {
            rank: Ending(process.pid or 0, process.exitcode)
            for rank, process in enumerate(processes)
        }
        failed = [ending.exit_code for ending in endings.values() if ending.exit_code]
        if failed:
            killed = ranks.killed_rank(endings)
            if run is not None:
                ranks.report_killed(run, endings)
            code = failed[0] if killed is None else endings[killed].exit_code or 0
            return shell_exit_code(code)
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
