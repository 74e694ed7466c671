"""Folders of the gallery: one cache folder, and one folder of runs.

In a checkout they are `.cache/` and `runs/` beside `pyproject.toml`. For an installed package they
are the user's cache folder and the working directory. `GALLERY_CACHE_DIR` and `GALLERY_RUNS_DIR`
override both.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from pathlib import Path
from typing import NoReturn

from gallery_lib.errors import InputError


def checkout() -> Path | None:
    """Return the checkout that this package lives in, or None when it is installed elsewhere."""
    root = Path(__file__).resolve().parents[2]
    is_one = all((root / name).is_file() for name in ("pyproject.toml", "launch_single_task.py"))
    return root if is_one else None


def cache_dir() -> Path:
    """Return the folder of compiler caches, mock data and tuning results."""
    if setting := os.environ.get("GALLERY_CACHE_DIR"):
        return Path(setting).expanduser().resolve()
    if root := checkout():
        return root / ".cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gallery_lib"


def data_dir(name: str) -> Path:
    """Return the default folder of the data set `name` (`imagenet-small`, say)."""
    return cache_dir() / "data" / name


def runs_dir() -> Path:
    """Return the folder in which new run directories are made."""
    if setting := os.environ.get("GALLERY_RUNS_DIR"):
        return Path(setting).expanduser().resolve()
    return (checkout() or Path.cwd()) / "runs"


def code_folder(path: Path) -> Path:
    """Return `path`, a folder of files that are loaded as code; create it for this user alone.

    Who can change such a file has it executed. Two users are as trustworthy as this one: root, and
    the owner of this package, whose code is executed anyway. A folder that others can enter is
    searched whole, once, and then closed to them. Of a closed one only the first level is looked
    at: others could reach deeper ones through that alone. A folder that somebody else owns, may
    write to or may rename is an InputError, and so is one that holds what somebody else owns.
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


def output_folder(asked: str | None, name: str, *, resume: bool, file: str, work: str) -> Path:
    """Return the folder for a command's results, `asked` or a new one, and create it if needed.

    `file` is the name of the results file, `work` the kind of results, for messages (a batch, say).
    Nothing to resume in is an InputError, and so is `file` of earlier work that is not resumed.
    """
    if resume and asked is None:
        raise InputError(f"--resume needs --out FOLDER: the {work} to go on with.", parameter="out")
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
