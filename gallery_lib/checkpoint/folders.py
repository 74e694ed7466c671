"""Checkpoints on the disk: `checkpoints/step-00000120.pt`, whole or not there. Needs no torch."""

from __future__ import annotations

import re
from pathlib import Path

from gallery_lib.errors import InputError

CHECKPOINTS = "checkpoints"
AUTO = "auto"
"""Word of `--resume` for the newest checkpoint."""
_NAME = re.compile(r"step-(\d{8,})\.pt")


def of_step(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint after `step` in a folder of checkpoints."""
    return folder / f"step-{step:08d}.pt"


def newest_first(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the one with the most steps first."""
    found = [path for path in folder.glob("step-*.pt") if _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.stem.removeprefix("step-")), reverse=True)


def named(path: Path) -> Path:
    """Return the checkpoint that a path names: the file, or the newest in a folder or its run.

    Raises:
        InputError: the path names none.
    """
    if path.is_file():
        return path
    for checkpoint in (*newest_first(path), *newest_first(path / CHECKPOINTS)):
        return checkpoint
    raise InputError(
        f"resume={path} names no checkpoint. Name one, such as "
        "RUN_DIR/checkpoints/step-00000120.pt, or the folder of its run.",
        parameter="resume",
    )


def reason_of(error: BaseException) -> str:
    """Return torch's words for a file that cannot be loaded, in a line."""
    return " ".join(str(error).rpartition("WeightsUnpickler error: ")[2].split())[:300]
