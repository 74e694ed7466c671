"""Folder of a run: checked before anything is trained, and locked against a second run."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from filelock import FileLock, Timeout

from gallery_lib.checkpoint.folders import CHECKPOINTS, newest_first
from gallery_lib.checkpoint.notice import ENDED_FILE, REQUEST_FILE
from gallery_lib.config import TrainConfig
from gallery_lib.console.exit_code import refusal
from gallery_lib.console.phases import PHASES_FILE
from gallery_lib.errors import InputError
from gallery_lib.launcher import description
from gallery_lib.launcher.forked import HELD_FILE
from gallery_lib.system import paths
from gallery_lib.train.failure import ERROR_FILES
from gallery_lib.train.run_log import STARTS_FILE

_LOCK_FILE = ".lock-host{}"
_OF_A_RUN = (
    *(
        "config.json",
        "steps.jsonl",
        "phases.json",
        "results.json",
        "weights.pt",
        "held",
        "tensorboard",
    ),
    *(
        "rendezvous*",
        "torchrun-rendezvous",
        "torchrun",
        "torchrun-host*.txt",
        "log-rank*.txt",
        "error-rank*.json",
        "probe*",
    ),
    *(
        _LOCK_FILE.format("*"),
        description.FILE.format("*"),
        ".*.tmp",  # of a writer that was killed
        "initial-*.pt",
        "traffic.json",
        "losses.json",
        "failure.txt",
        "slurm-*",  # a job's batch file, and what Slurm wrote
        CHECKPOINTS,
        STARTS_FILE,
        REQUEST_FILE.format("*"),
        ENDED_FILE,
    ),
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
    if run_dir.startswith("-"):
        raise InputError(
            f"run_dir={run_dir!r} begins with a dash, as options do. "
            f"A folder of that name is written ./{run_dir}.",
            parameter="run_dir",
        )
    try:
        folder = Path(run_dir).expanduser()
        if folder.exists() and not folder.is_dir():
            raise InputError(
                f"run_dir={run_dir} is a file. Name a new folder.", parameter="run_dir"
            )
        _check_content(run_dir, folder, resume)
        if not make:
            return folder
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise InputError(
                f"run_dir={run_dir} may not be written by this user. Name another folder.",
                parameter="run_dir",
            )
    except RuntimeError as error:  # ~somebody is no user
        raise InputError(
            f"run_dir={run_dir} cannot be used. {error}", parameter="run_dir"
        ) from None
    except OSError as error:
        raise InputError(
            f"run_dir={run_dir} cannot be used. {refusal(error)}.", parameter="run_dir"
        ) from None
    return folder


def _check_content(run_dir: str, folder: Path, resume: bool) -> None:
    """Raise InputError for a folder that holds something else, or a run that is not gone on with.

    `run_dir` is the folder as it was named.
    """
    there = list(folder.iterdir()) if folder.exists() else []
    foreign = sorted(file.name for file in there if not any(file.match(name) for name in _OF_A_RUN))
    if foreign:
        more = f" and {len(foreign) - _SHOWN} more" if len(foreign) > _SHOWN else ""
        raise InputError(
            f"run_dir={run_dir} holds files of something else "
            f"({', '.join(foreign[:_SHOWN])}{more}). Name a new folder.",
            parameter="run_dir",
        )
    if (folder / "results.json").exists():
        raise InputError(
            f"run_dir={run_dir} holds a finished run. Name a new folder, or move that one away.",
            parameter="run_dir",
        )
    if not resume and newest_first(folder / CHECKPOINTS):
        raise InputError(
            f"run_dir={run_dir} holds checkpoints of a run that has not finished: "
            "--resume=auto goes on with it. For a new run name a new folder.",
            parameter="run_dir",
        )


def new(config: TrainConfig) -> str:
    """Return the name of a new folder for a run that names none."""
    variant = "compiler-opt" if config.compiler_opt else "baseline"
    return str(paths.new_run_dir(f"{config.model.rsplit(':', 1)[-1]}-{variant}"))


def clear(folder: Path, host: int, *, resume: bool) -> None:
    """Remove what would be taken for this run's from a folder in which a run has broken off.

    Other hosts of the run may be at work already: what they ask of their own ranks stays. So does
    the record of interruptions where this run goes on (`resume`), or has checkpoints.
    """
    names = [ERROR_FILES, HELD_FILE, PHASES_FILE, REQUEST_FILE.format(host), ENDED_FILE]
    if host == 0 and not resume and not newest_first(folder / CHECKPOINTS):
        names.append(STARTS_FILE)
    for name in names:
        for file in folder.glob(name):
            file.unlink()


class FolderLock(contextlib.AbstractContextManager["FolderLock"]):
    """Lock on a run's folder, for one host of the run, until `release` or the end of this process.

    Raises:
        InputError: where another run is at work in it.
    """

    def __init__(self, folder: Path, host: int) -> None:
        self._folder, self._file = folder, folder / _LOCK_FILE.format(host)
        self._lock = FileLock(self._file, thread_local=False)
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            raise InputError(
                f"run_dir={folder}: another run is at work in it. "
                "Wait for it, or name another folder.",
                parameter="run_dir",
            ) from None
        self._there = folder.stat()

    def folder_is_gone(self) -> bool:
        """Return whether the folder was removed or renamed; another may have its name now."""
        try:
            return not os.path.samestat(self._there, self._folder.stat())
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # a network disk that does not answer
            return False

    def release(self) -> None:
        """Release the folder's lock."""
        if self._lock.is_locked and not self.folder_is_gone():
            self._file.unlink(missing_ok=True)
        self._lock.release()

    def __exit__(self, *raised: object) -> None:
        self.release()
