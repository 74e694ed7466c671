"""Start the processes of a run on one host without torchrun, for comparisons.

    -m gallery_lib.launcher.forked N FOLDER MODULE OPTIONS…

torchrun imports torch itself before it starts anything, which takes seconds, and start-up is part
of what is compared. Here the libraries are imported once, and the run's processes are forked from
the one that has them. Where there is a GPU each process starts anew, since CUDA does not survive a
fork. Each process gets torchrun's variables, and a file in FOLDER as rendezvous instead of a port.

When one process fails the others are ended. Failures are reported in torchrun's format. If several
have failed meanwhile, the report is about one that was killed: the others fail because it is gone.

A run that is held (the variable HELD_VARIABLE) stops after its imports, with the file HELD_FILE in
its folder. It goes on when the file is removed. The time in between is not part of its start-up.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
import time
from pathlib import Path

from gallery_lib.comm.rendezvous import RENDEZVOUS_FILE
from gallery_lib.launcher.stopped_ranks import StoppedRanks
from gallery_lib.system.processes import (
    LAUNCHED_AT_VARIABLE,
    RENDEZVOUS_VARIABLE,
    can_fork,
    die_with_parent,
    end_descendants,
    now,
)

HELD_FILE = "held"
HELD_VARIABLE = "GALLERY_HELD"
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
    if HELD_VARIABLE not in os.environ:
        return
    began = now()
    (folder / HELD_FILE).touch()
    while (folder / HELD_FILE).exists():
        time.sleep(_HELD_LOOK_SECONDS)
    os.environ[LAUNCHED_AT_VARIABLE] = repr(float(os.environ[LAUNCHED_AT_VARIABLE]) + now() - began)


def _process(module: str, arguments: list[str], environment: dict[str, str]) -> None:
    """Run `main(arguments)` of the module in a process of the run, which it ends."""
    os.environ.update(environment)
    importlib.import_module(module).main(arguments)


def main(processes: int, folder: Path, module: str, arguments: list[str]) -> int:
    """Run `main(arguments)` of `module` in several processes; return the exit code.

    It is 0, or that of the first process that failed.
    """
    die_with_parent()
    rendezvous = folder / RENDEZVOUS_FILE
    rendezvous.unlink(missing_ok=True)
    forks = can_fork()
    if forks:
        importlib.import_module("gallery_lib.launcher.worker").preload()
        importlib.import_module(module)
    _wait_while_held(folder)
    context = multiprocessing.get_context("fork" if forks else "spawn")
    environments = [_environment(rank, processes, rendezvous) for rank in range(processes)]
    running = [
        context.Process(target=_process, args=(module, arguments, environment))  # type: ignore[attr-defined]
        for environment in environments
    ]
    try:
        for process in running:
            process.start()
        watch = StoppedRanks.from_environment()
        if watch is not None:
            watch.watch({rank: process.pid for rank, process in enumerate(running)})
        while True:
            codes = [process.exitcode for process in running]
            failed = min(
                (rank for rank, code in enumerate(codes) if code),
                key=lambda rank: codes[rank] or 0,
                default=None,
            )
            if failed is not None:
                code = codes[failed]
                print(
                    "Root Cause:\n"
                    f"  rank      : {failed}\n"
                    f"  exitcode  : {code} (pid: {running[failed].pid})",
                    file=sys.stderr,
                )
                return code if code > 0 else 128 - code
            if None not in codes:
                return 0
            time.sleep(_LOOK_SECONDS)
    finally:
        end_descendants()
        rendezvous.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4:]))
