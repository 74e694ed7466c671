"""Folders of the gallery: one cache folder, and one folder of runs.

In a checkout they are `.cache/` and `runs/` beside `pyproject.toml`. For an installed package they
are the user's cache folder and the working directory. `GALLERY_CACHE_DIR` and `GALLERY_RUNS_DIR`
override both.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn, TextIO

from gallery_lib.errors import InputError


def checkout() -> Path | None:
    """Return the checkout that this package lives in, or None when it is installed elsewhere."""
    root = Path(__file__).resolve().parents[2]
    is_one = all((root / name).is_file() for name in ("pyproject.toml", "launch_single_task.py"))
    return root if is_one else None


def ours(folder: Path) -> bool:
    """Return whether the folder, which exists, is this user's and writable."""
    owner_is_no_other = os.geteuid() == 0 or folder.stat().st_uid == os.geteuid()
    return owner_is_no_other and os.access(folder, os.W_OK | os.X_OK)


def _own_checkout(inside: str) -> Path | None:
    """Return the folder of that name in the checkout; None where this user keeps nothing there."""
    if (root := checkout()) is None:
        return None
    folder = root / inside
    return folder if ours(folder if folder.exists() else root) else None


def home() -> Path:
    """Return the user's home; for a user who has none (`docker --user`) a folder for temporary use.

    HOME may name a folder that is not there, and a user's number may have no name.
    """
    with contextlib.suppress(RuntimeError, OSError):
        folder = Path.home()
        if ours(folder):
            return folder
    return Path(tempfile.gettempdir()) / f"gallery-user-{os.geteuid()}"


def cache_dir() -> Path:
    """Return the folder of compiler caches, mock data and tuning results."""
    if setting := os.environ.get("GALLERY_CACHE_DIR"):
        return Path(setting).expanduser().resolve()
    if inside := _own_checkout(".cache"):
        return inside
    return Path(os.environ.get("XDG_CACHE_HOME") or home() / ".cache") / "gallery_lib"


def own_environment_dir(root: Path) -> Path:
    """Return the folder of this user's own environment for the checkout at `root`."""
    if ours(root):
        return root / ".venv"
    return cache_dir() / "environments" / str(root).replace(os.sep, "-")


def environment_dir(root: Path) -> Path:
    """Return the environment to use for the checkout at `root`: this user's own, or its owner's."""
    own = own_environment_dir(root)
    return own if own.is_dir() else root / ".venv"


def data_dir(name: str) -> Path:
    """Return the default folder of the data set `name` (`imagenet-small`, say).

    In a checkout of another user, that user's data are read where there are none of one's own.
    """
    own, root = cache_dir() / "data" / name, checkout()
    is_set = os.environ.get("GALLERY_CACHE_DIR")
    if root is None or is_set or _own_checkout(".cache") or own.exists():
        return own
    theirs = root / ".cache" / "data" / name
    return theirs if theirs.is_dir() else own


def runs_dir() -> Path:
    """Return the folder in which new run directories are made."""
    if setting := os.environ.get("GALLERY_RUNS_DIR"):
        return Path(setting).expanduser().resolve()
    if checkout() is None:
        return Path.cwd() / "runs"
    return _own_checkout("runs") or home() / "gallery-runs"


def print_notice(file: TextIO | None = None) -> None:
    """Say where things are kept when this user cannot or should not write in the checkout.

    The line goes to `file`, by default standard error.
    """
    root = checkout()
    if root is not None and not (_own_checkout(".cache") and _own_checkout("runs")):
        print(
            f"{root} is not yours to write in, so runs are kept in {runs_dir()}, "
            f"compiled code and data in {cache_dir()}.",
            file=file or sys.stderr,
            flush=True,
        )


def code_folder(path: Path) -> Path:
    """Return `path`, a folder of files that are loaded as code; create it for this user alone.

    Who can change such a file has it executed. Two users are as trustworthy as this one: root, and
    the owner of this package, whose code is executed anyway. A folder that others can enter is
    searched whole, once, and then closed to them. Of a closed one only the first level is looked
    at: others could reach deeper ones through that alone.

    Raises:
        InputError: for a folder that somebody else owns, may write to or may rename, and for one
            that holds what somebody else owns.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    trusted = {os.geteuid(), 0, Path(__file__).stat().st_uid}
    # Who can rename what is above this package can as well replace the package.
    for above in {*path.absolute().parents, *path.resolve().parents} - {*Path(__file__).parents}:
        there = above.stat()
        if there.st_mode & 0o002 and not (there.st_mode & stat.S_ISVTX and there.st_uid in trusted):
            _refuse(path, above, there, trusted)
    there = path.stat()
    if there.st_uid not in trusted or there.st_mode & 0o022:
        _refuse(path, path, there, trusted)
    is_open = there.st_mode & 0o011
    for folder, folders, files in os.walk(path):
        for inside in (Path(folder, name) for name in folders + files):
            with contextlib.suppress(FileNotFoundError):  # another process replaces it
                there = inside.lstat()
                may_write = is_open and there.st_mode & 0o022 and not inside.is_symlink()
                if there.st_uid not in trusted or may_write:
                    _refuse(path, inside, there, trusted)
        if not is_open:
            return path
    with contextlib.suppress(PermissionError):  # that of another trusted user
        path.chmod(0o700)
    return path


def _refuse(path: Path, culprit: Path, there: os.stat_result, trusted: set[int]) -> NoReturn:
    """Raise InputError for the folder of code at `path`, about what others can do to `culprit`."""
    if there.st_uid not in trusted:
        who, mend = f"belongs to user {there.st_uid}", f"Remove {culprit}"
    else:
        who = f"may be written by others (mode {there.st_mode & 0o777:o})"
        mend = f"Run `chmod {'-R ' if culprit is path else ''}go-w {culprit}`"
    is_ours = path.is_relative_to(cache_dir())
    variable = "GALLERY_CACHE_DIR" if is_ours else "TORCHINDUCTOR_CACHE_DIR"
    raise InputError(
        f"{culprit} {who}, and code is loaded from {'it' if culprit is path else path}. "
        f"{mend}, or move the cache with {variable}.",
        parameter=str(path),
    )


def new_run_dir(name: str) -> Path:
    """Make and return a new, empty run directory `<time>-<name>`, also in the same second."""
    while True:
        path = free_name(runs_dir(), f"{time.strftime('%Y%m%d-%H%M%S')}-{name}")
        with contextlib.suppress(FileExistsError):  # another process has just made it
            path.mkdir(parents=True)
            return path


def check_resume(asked: str | None, *, resume: bool, work: str) -> None:
    """Raise InputError where earlier results are to be resumed that nobody names."""
    if resume and asked is None:
        raise InputError(f"--resume needs --out FOLDER: the {work} to go on with.", parameter="out")


def output_folder(asked: str | None, name: str, *, resume: bool, file: str, work: str) -> Path:
    """Return the folder for a command's results, `asked` or a new one, and create it if needed.

    `file` is the name of the results file, `work` the kind of results, for messages (a batch, say).

    Raises:
        InputError: when there is nothing to resume in, and when the folder already holds `file` of
            earlier work that is not to be resumed.
    """
    check_resume(asked, resume=resume, work=work)
    folder = Path(asked).resolve() if asked else new_run_dir(name)
    if (folder / file).exists() and not resume:
        raise InputError(
            f"out={folder} holds the results of an earlier {work}. "
            "Add --resume to go on with it, or name a new folder.",
            parameter="out",
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def free_name(folder: Path, name: str) -> Path:
    """Return NAME in the folder, or NAME-2 and so on; it does not exist, and is not made."""
    number = 1
    while (path := folder / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return path
