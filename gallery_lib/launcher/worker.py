"""Training process of a run: `-m gallery_lib.launcher.worker [OPTIONS]`.

Without options it finds the run that the launcher has written (train/resolved.py). It dies with
the process that started it. Whatever goes wrong is written to `error-rank<n>.json` in the run
directory, for the launcher to tell. Warnings and native messages go to the rank's log file.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gallery_lib.checkpoint.folders import AUTO, CHECKPOINTS, newest_first
from gallery_lib.config import TrainConfig
from gallery_lib.config.options import CommandLine
from gallery_lib.config.switches import compiler_enabled
from gallery_lib.console import user_errors
from gallery_lib.errors import GalleryError, GoOnLater, InputError, OutOfMemory, RunFailed
from gallery_lib.system.processes import HEARS_NOTICE_VARIABLE, die_with_parent
from gallery_lib.train.failure import ErrorReport, what_ran_out
from gallery_lib.train.resolved import RUN_VARIABLE, this_run


def _config(arguments: Sequence[str]) -> TrainConfig:
    """Return the options of this process: those given, or else those of the launcher's run."""
    run = None if arguments else this_run()
    if run is not None:
        os.environ.pop(RUN_VARIABLE)  # what this process may start is no part of the run
        if run.restarts and newest_first(run.run_dir / CHECKPOINTS):
            return dataclasses.replace(run.config, resume=AUTO)
        return run.config
    return CommandLine("worker", "One training process.", (TrainConfig,)).parse(arguments)[0]


def _run(body: Callable[[TrainConfig], Any], arguments: Sequence[str]) -> int:
    die_with_parent()
    # Where CUDA is, this process is spawned. It would spawn loading processes as well, which cannot
    # import the data set of a task's file, and import torch first.
    multiprocessing.set_start_method("fork", force=True)
    sys.path.append("")  # last: a task's file may import what lies in the working folder
    rank = os.environ.get("RANK", "0")
    run_dir: Path | None = None
    try:
        config = _config(arguments)
        if config.run_dir:
            run_dir = Path(config.run_dir)
            run_dir.mkdir(parents=True, exist_ok=True)
            log = (run_dir / f"log-rank{rank}.txt").open("a", buffering=1)
            os.dup2(log.fileno(), 2)
        if config.compiler_opt:
            from gallery_lib.compiler.backend import read_ahead

            read_ahead()
        body(config)
        return 0
    except GoOnLater as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except BaseException as error:
        if run_dir:
            _report(error, int(rank)).write(run_dir)
        traceback.print_exc()
        return error.exit_code if isinstance(error, GalleryError) else 1


def _report(error: BaseException, rank: int) -> ErrorReport:
    own_line = user_errors.line_of(error)
    kind = type(error).__name__
    if not isinstance(error, GalleryError) and (lack := what_ran_out(error)):
        kind, message = OutOfMemory.__name__, f"rank {rank}: {lack}"
    elif isinstance(error, RuntimeError) and "DataLoader worker (pid" in str(error):
        # A data-loading process was killed: torch's line says it, and no frame says more.
        kind, message = RunFailed.__name__, f"rank {rank}: {str(error).splitlines()[0].strip()}"
    else:
        # A data-loading process passes an error on as a traceback; the message stands at its end.
        marker = f"{type(error).__module__}.{type(error).__qualname__}: "
        message = str(error).rpartition(marker)[2].strip()
    return ErrorReport(
        rank,
        kind,
        message,
        own_line=str(own_line) if own_line else None,
        traceback=traceback.format_exc(),
        exit_code=error.exit_code if isinstance(error, GalleryError) else 1,
        parameter=error.parameter if isinstance(error, InputError) else None,
    )


def preload() -> None:
    """Import what takes seconds and every training process needs.

    torch calls its compiler's front end even when eager. Disable the garbage collector during
    imports, then freeze what they created: imports make next to no garbage, and frozen objects are
    never looked through again.
    """
    gc.disable()
    try:
        for name in [
            "gallery_lib.train.loop",
            "torch._dynamo",
            *(["torch._inductor.compile_fx"] if compiler_enabled() else []),
        ]:
            importlib.import_module(name)
    finally:
        gc.freeze()
        gc.enable()


def end_after(body: Callable[[TrainConfig], Any], arguments: Sequence[str]) -> None:
    """Call `body` with the options of the run, and end the process.

    It does not wait for threads of native libraries. It returns only where all went well in a
    process that was forked: torchrun waits for what its processes return.
    """
    code = _run(body, arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    if code or multiprocessing.parent_process() is None:
        os._exit(code)


def main(arguments: Sequence[str]) -> None:
    """Train with the options in `arguments`, then end the process."""
    if multiprocessing.parent_process() is not None:
        # A forked process has torchrun's handlers, which raise. A rank that takes SIGTERM for a
        # notice still ignores it, until it listens.
        hears = {signal.SIGTERM} if HEARS_NOTICE_VARIABLE in os.environ else set()
        for number in {signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT} - hears:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
    preload()
    from gallery_lib.train.loop import train

    end_after(train, arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
