"""Folder of a run: checked before anything is trained, and locked against a second run."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from gallery_lib.checkpoint.folders import CHECKPOINTS, newest_first
from gallery_lib.checkpoint.notice import REQUEST_FILE
from gallery_lib.config import TrainConfig
from gallery_lib.console.exit_code import refusal
from gallery_lib.console.phases import PHASES_FILE
from gallery_lib.errors import InputError
from gallery_lib.launcher.forked import HELD_FILE
from gallery_lib.system import paths
from gallery_lib.system.files import LockHeld, locked
from gallery_lib.train.failure import ERROR_FILES

_LOCK_FILE = ".lock-host{}"
_OF_A_RUN = re.compile(
    r"(config|phases|results|losses|traffic)\.json|steps\.jsonl"
    r"|failure\.txt|held|checkpoints|\..*\.tmp"
    r"|(rendezvous|torchrun|launcher-host|log-rank|error-rank|probe|initial-|slurm-|run-host"
    r"|end-requested-host|\.lock-host).*"
)
"""Names of files that a run that did not finish may have left."""
_SHOWN = 3


def checked(run_dir: str, *, make: bool = True, resume: bool = False) -> Path:
    """Return the folder that `run_dir` names; with `make`, create it where there is none.

    Only with `resume` may it hold checkpoints of a run that has not finished.

    Raises:
        InputError: for a name that is no folder's, and for a folder that cannot be made or written
            to. Also for a folder that holds a finished run or files of something else.
    """
    try:
        folder = Path(run_dir).expanduser()
        fault = _fault(run_dir, folder, resume)
        if make and not fault:
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK | os.X_OK):
                fault = "may not be written by this user. Name another folder."
    except RuntimeError as error:  # ~somebody is no user
        fault = f"cannot be used. {error}"
    except OSError as error:
        fault = f"cannot be used. {refusal(error)}."
    if fault:
        raise InputError(f"run_dir={run_dir} {fault}", parameter="run_dir")
    return folder


def _fault(run_dir: str, folder: Path, resume: bool) -> str:
    """Return what is wrong with a folder, or ""; `run_dir` is the folder as it was named."""
    if run_dir.startswith("-"):
        return f"begins with a dash, as options do. A folder of that name is written ./{run_dir}."
    if folder.exists() and not folder.is_dir():
        return "is a file. Name a new folder."
    there = sorted(file.name for file in folder.iterdir()) if folder.exists() else []
    if foreign := [name for name in there if not _OF_A_RUN.fullmatch(name)]:
        more = f" and {len(foreign) - _SHOWN} more" if len(foreign) > _SHOWN else ""
        shown = ", ".join(foreign[:_SHOWN])
        return f"holds files of something else ({shown}{more}). Name a new folder."
    if "results.json" in there:
        return "holds a finished run. Name a new folder, or move that one away."
    if not resume and newest_first(folder / CHECKPOINTS):
        return (
            "holds checkpoints of a run that has not finished: --resume=auto goes on with it. "
            "For a new run name a new folder."
        )
    return ""


def new(config: TrainConfig) -> str:
    """Return the name of a new folder for a run that names none."""
    variant = "compiler-opt" if config.compiler_opt else "baseline"
    return str(paths.new_run_dir(f"{config.model.rsplit(':', 1)[-1]}-{variant}"))


def clear(folder: Path, host: int) -> None:
    """Remove what would be taken for this run's from a folder in which a run has broken off.

    Other hosts of the run may be at work already: what they ask of their own ranks stays.
    """
    for name in (ERROR_FILES, HELD_FILE, PHASES_FILE, REQUEST_FILE.format(host)):
        for file in folder.glob(name):
            file.unlink()


@contextlib.contextmanager
def locked_for_host(folder: Path, host: int) -> Iterator[None]:
    """Context: one host of a run has the folder, until the end of this process at most.

    Raises:
        InputError: where another run is at work in it.
    """
    file = folder / _LOCK_FILE.format(host)
    try:
        with locked(file, wait=False):
            yield
            file.unlink(missing_ok=True)
    except LockHeld:
        raise InputError(
            f"run_dir={folder}: another run is at work in it. Wait for it, or name another folder.",
            parameter="run_dir",
        ) from None
