"""Where the gallery keeps things: one cache folder, and one folder of runs.

In a checkout they are `.cache/` and `runs/` beside `pyproject.toml`; for an installed package, the user's cache
folder and the working directory. `GALLERY_CACHE_DIR` and `GALLERY_RUNS_DIR` override both.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from gallery_lib.errors import InputError


def checkout() -> Path | None:
    """The checkout that this package lives in, or None when it is installed elsewhere."""
    root = Path(__file__).resolve().parent.parent
    return root if (root / "pyproject.toml").is_file() and (root / "launch_single_task.py").is_file() else None


def cache_dir() -> Path:
    """Compiler caches, mock data and tuning results."""
    if chosen := os.environ.get("GALLERY_CACHE_DIR"):
        return Path(chosen).expanduser().resolve()
    if root := checkout():
        return root / ".cache"
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gallery_lib"


def data_dir(name: str) -> Path:
    """Where the data set `name` (`imagenet-small`, say) is kept when no folder was given."""
    return cache_dir() / "data" / name


def runs_dir() -> Path:
    """The folder that new run directories are made in."""
    if chosen := os.environ.get("GALLERY_RUNS_DIR"):
        return Path(chosen).expanduser().resolve()
    return (checkout() or Path.cwd()) / "runs"


def new_run_dir(name: str) -> Path:
    """A new, empty run directory `<time>-<name>`, unique also when several start in the same second."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for attempt in range(1000):
        path = runs_dir() / (f"{stamp}-{name}" + (f"-{attempt}" if attempt else ""))
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            continue
    raise FileExistsError(f"no free run directory below {runs_dir()}")


def output_folder(asked: str | None, name: str, *, resume: bool, file: str, work: str) -> Path:
    """The folder that a command writes its results to: the one asked for, else a new run directory NAME; it exists.

    Raises InputError when there is nothing to resume in, and when the folder holds FILE already, of an earlier WORK (a
    batch, say) that is not to be resumed.
    """
    if resume and asked is None:
        raise InputError(f"--resume needs --out FOLDER: the {work} to go on with.")
    folder = Path(asked).resolve() if asked else new_run_dir(name)
    if (folder / file).exists() and not resume:
        raise InputError(f"out={folder} holds the results of an earlier {work}. Add --resume to go on with it, or name a new folder.")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def free_name(folder: Path, name: str) -> Path:
    """NAME in the folder, or NAME-2 and so on for further attempts: nothing is overwritten. It is not made."""
    number = 1
    while (path := folder / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return path
