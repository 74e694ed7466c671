"""Checkpoints on the disk: `checkpoints/step-00000120.pt`, whole or not there. Needs no torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from gallery_lib.errors import InputError

CHECKPOINTS = "checkpoints"
AUTO = "auto"
"""Word of `--resume` for the newest checkpoint."""
_NAME = re.compile(r"step-(\d{8,})\.pt")
_INTERVAL = re.compile(r"([1-9]\d{0,8})(min)?", re.ASCII)


@dataclass(frozen=True)
class Interval:
    """Interval between two checkpoints: a number of steps, or seconds. The other is None."""

    steps: int | None = None
    seconds: float | None = None


def interval_of(text: str | int, parameter: str = "checkpoint_every") -> Interval:
    """Return the interval that `20` (steps) or `10min` means; raise InputError for other text."""
    if written := _INTERVAL.fullmatch(str(text)):
        number, is_time = int(written[1]), written[2]
        return Interval(seconds=60.0 * number) if is_time else Interval(steps=number)
    raise InputError(
        f"{parameter}={text!r} must be a number of steps such as 20, or of minutes such as 10min.",
        parameter=parameter,
    )


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
