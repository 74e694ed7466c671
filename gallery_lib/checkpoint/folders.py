"""Folders of checkpoints: `checkpoints/step-00000120/`, complete or not there.

A checkpoint is written beside its name under a hidden one, and renamed last. It is deleted in the
same way. So a folder of the name is a whole checkpoint, unless a disk or a person has damaged it.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

CHECKPOINTS = "checkpoints"
AUTO = "auto"
"""Word of `--resume` for the newest checkpoint."""
_NAME = re.compile(r"step-(\d{8,})")
DAMAGED, LEFT = "damaged", "left"
"""Words before the names of checkpoints that are kept and do not count."""


def of_step(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint after `step` in a folder of checkpoints."""
    return folder / f"step-{step:08d}"


def is_checkpoint(path: Path) -> bool:
    """Return whether `path` is named as a checkpoint."""
    return _NAME.fullmatch(path.name) is not None


def newest_first(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the one with the most steps first."""
    if not folder.is_dir():
        return []
    named = [path for path in folder.iterdir() if is_checkpoint(path) and path.is_dir()]
    return sorted(named, key=lambda path: int(path.name.removeprefix("step-")), reverse=True)


def unfinished(folder: Path, step: int) -> Path:
    """Return the path under which the checkpoint after `step` is written."""
    return folder / f".{of_step(folder, step).name}.tmp"


def begin(folder: Path, step: int) -> Path:
    """Make an empty folder to write the checkpoint after `step` to; return its path.

    What a killed process has left unfinished in `folder` is removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(".*.tmp"):
        shutil.rmtree(left, ignore_errors=True)
    path = unfinished(folder, step)
    path.mkdir()
    return path


def finish(folder: Path, step: int, keep: int) -> Path:
    """Give the written checkpoint its name, delete all but the newest `keep`; return its path.

    Everything in it is on the disk by then, so it also survives a power failure.
    """
    path = of_step(folder, step)
    _synchronize(unfinished(folder, step))
    if path.exists():  # of a run that had come further
        remove(path)
    unfinished(folder, step).rename(path)
    _synchronize(folder)
    for old in newest_first(folder)[keep:]:
        remove(old)
    return path


def abandon(folder: Path, step: int) -> None:
    """Remove a checkpoint that could not be written."""
    shutil.rmtree(unfinished(folder, step), ignore_errors=True)


def remove(path: Path) -> None:
    """Delete a checkpoint; no half of it is ever seen under its name."""
    hidden = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
    path.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def set_aside(path: Path, why: str) -> Path:
    """Rename a checkpoint, so that it does not count as one of those to keep."""
    aside = path.with_name(f"{why}-{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    return aside


def set_aside_later(path: Path) -> list[Path]:
    """Set aside the checkpoints with more steps than `path`, in its folder; return where they are.

    A training that goes on from `path` leaves them behind.
    """
    folder = newest_first(path.parent)
    later = folder[: folder.index(path)] if path in folder else []
    return [set_aside(one, LEFT) for one in later]


def _synchronize(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
