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
    root = Path(__file__).resolve().parents[2]
    return (
        root
        if (root / "pyproject.toml").is_file() and (root / "launch_single_task.py").is_file()
        else None
    )


def ours(folder: Path) -> bool:
    """Return whether this user keeps things in the folder: it is there, may be written, and is not another user's."""
    owner_is_no_other = os.geteuid() == 0 or folder.stat().st_uid == os.geteuid()
    return owner_is_no_other and os.access(folder, os.W_OK | os.X_OK)


def _own_checkout(inside: str) -> Path | None:
    """Return the folder of that name in the checkout, if there is a checkout and this user may keep things there."""
    root = checkout()
    if root is None:
        return None
    folder = root / inside
    return folder if ours(folder if folder.exists() else root) else None


def cache_dir() -> Path:
    """Compiler caches, mock data and tuning results."""
    if chosen := os.environ.get("GALLERY_CACHE_DIR"):
        return Path(chosen).expanduser().resolve()
    if inside := _own_checkout(".cache"):
        return inside
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gallery_lib"


def environment_dir(root: Path) -> Path:
    """Return the folder of the environment that `prepare.sh` made for the checkout at `root`: its `.venv`.

    In a checkout of another user: one below this user's cache folder, where there is one.
    """
    own = cache_dir() / "environments" / str(root).replace(os.sep, "-")
    return own if not ours(root) and own.is_dir() else root / ".venv"


def data_dir(name: str) -> Path:
    """Where the data set `name` (`imagenet-small`, say) is kept when no folder was given.

    In a checkout of another user, its data are read where there are none of one's own.
    """
    own, root = cache_dir() / "data" / name, checkout()
    if (
        root is None
        or os.environ.get("GALLERY_CACHE_DIR")
        or _own_checkout(".cache")
        or own.exists()
    ):
        return own
    theirs = root / ".cache" / "data" / name
    return theirs if theirs.is_dir() else own


def runs_dir() -> Path:
    """The folder that new run directories are made in."""
    if chosen := os.environ.get("GALLERY_RUNS_DIR"):
        return Path(chosen).expanduser().resolve()
    if checkout() is None:
        return Path.cwd() / "runs"
    return _own_checkout("runs") or Path.home() / "gallery-runs"


def notice() -> str:
    """Return where things are kept instead, in one line, in a checkout that this user cannot or should not write to; else ''."""
    root = checkout()
    if root is None or (_own_checkout(".cache") and _own_checkout("runs")):
        return ""
    return f"{root} is not yours to write in, so runs are kept in {runs_dir()}, compiled code and data in {cache_dir()}."


def code_folder(path: Path) -> Path:
    """Return a folder of files that are loaded as code, made where there is none, for this user alone.

    Raises InputError for one into which somebody else may write: who can change such a file has it executed. As trustworthy as
    this user are root, and the owner of this package, whose code is executed anyway.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    there = path.stat()
    trusted = {os.geteuid(), 0, Path(__file__).stat().st_uid}
    if there.st_uid in trusted and not there.st_mode & 0o022:
        return path
    who = (
        f"belongs to user {there.st_uid}"
        if there.st_uid not in trusted
        else f"may be written by others (mode {there.st_mode & 0o777:o})"
    )
    raise InputError(
        f"{path} {who}, and code is loaded from it. Run `chmod -R go-w {path}`, or move the cache with GALLERY_CACHE_DIR."
    )


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
        raise InputError(
            f"out={folder} holds the results of an earlier {work}. Add --resume to go on with it, or name a new folder."
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def free_name(folder: Path, name: str) -> Path:
    """NAME in the folder, or NAME-2 and so on for further attempts: nothing is overwritten. It is not made."""
    number = 1
    while (path := folder / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return path
