"""Choose the checkpoint to go on from: the newest that is whole, or the one that was named."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gallery_lib.checkpoint import folders, manifest
from gallery_lib.checkpoint.folders import AUTO
from gallery_lib.checkpoint.manifest import Manifest, Unusable
from gallery_lib.comm import process_group
from gallery_lib.console.exit_code import refusal
from gallery_lib.errors import InputError

COMMON_FILE = "training.pt"
BESIDE = "beside"
"""Fact of a script's checkpoint: folders, relative to its own, that are to hold the same step."""


@dataclass(frozen=True)
class Choice:
    """A whole checkpoint, and what was refused before it, in sentences."""

    path: Path
    manifest: Manifest
    refused: list[str] = field(default_factory=list)

    def common(self) -> dict[str, Any]:
        """Return the part of the state that all ranks have in common."""
        from gallery_lib.checkpoint import reading  # the import takes most of a second

        return reading.plain_state(self.path / COMMON_FILE)


def newest_whole(folder: Path, *, set_aside: bool = False) -> Choice | None:
    """Return the newest whole checkpoint in a folder; None where there is none at all.

    Args:
        folder: a folder of checkpoints.
        set_aside: rename those that are damaged.

    Raises:
        Unusable: all that are there are damaged, or the newest whole one is of a newer version.
    """
    refused: list[str] = []
    for path in folders.newest_first(folder):
        try:
            found = _whole(path)
            if not (lacking := _lacking(folder, found)):
                return Choice(path, found, refused)
            reason, word = f"{path} is left behind: {lacking} has no such step.", folders.LEFT
        except Unusable as error:
            if not error.damaged:
                raise
            reason, word = str(error), folders.DAMAGED
        if set_aside:
            with contextlib.suppress(OSError):  # a folder that may only be read
                reason += f" It is kept as {folders.set_aside(path, word).name}."
        refused.append(reason)
    if refused:
        raise InputError(
            f"{folder} has no whole checkpoint. {' '.join(refused)}", parameter="resume"
        )
    return None


def _lacking(folder: Path, found: Manifest) -> Path | None:
    """Return a folder that was to hold the same step, holds checkpoints, and not that one."""
    for name in found.facts.get(BESIDE, ()):
        other = folder / name
        if folders.newest_first(other) and not folders.of_step(other, found.step).is_dir():
            return other
    return None


def _whole(path: Path) -> Manifest:
    found = manifest.read(path)
    manifest.check_files(path, found)
    return found


def _places(path: Path) -> list[Path]:
    """Return where the checkpoints are that a path names: in it, or in its `checkpoints`."""
    return [folder for folder in (path, path / folders.CHECKPOINTS) if folders.newest_first(folder)]


def _is_one(path: Path) -> bool:
    return folders.is_checkpoint(path.absolute()) or (path / manifest.FILE).exists()


def check_named(path: Path) -> None:
    """Raise InputError for a path that names no checkpoint. What is in one is not looked at."""
    try:
        is_folder, holds_one = path.is_dir(), _is_one(path) or bool(_places(path))
    except OSError as error:
        raise InputError(
            f"resume={path} cannot be used. {refusal(error)}.", parameter="resume"
        ) from None
    if not is_folder:
        what = "is a file" if path.exists() else "does not exist"
        raise InputError(
            f"resume={path} {what}. Name a checkpoint, such as "
            "RUN_DIR/checkpoints/step-00000120, or the folder of its run.",
            parameter="resume",
        )
    if not holds_one:
        raise InputError(f"resume={path} holds no checkpoint.", parameter="resume")


def named(path: Path) -> Choice:
    """Return the checkpoint that a path names: itself, or the newest whole one in a folder.

    Raises:
        InputError: there is none, or it cannot be used.
    """
    check_named(path)
    if _is_one(path):
        return Choice(path, _whole(path))
    choice = newest_whole(_places(path)[0])
    assert choice is not None
    return choice


def choose(resume: str, own_folder: Path | None) -> Choice | None:
    """Return the checkpoint to go on from, the same on every rank. A collective call.

    Args:
        resume: `auto`, or a path.
        own_folder: the folder of this training's checkpoints, for `auto`.

    Raises:
        InputError: on every rank where there is none to use.
    """
    answer: tuple[Choice | None, InputError | None] = (None, None)
    if process_group.rank() == 0:
        try:
            if resume != AUTO:
                answer = (named(Path(resume).expanduser()), None)
            elif own_folder is not None:
                answer = (newest_whole(own_folder, set_aside=True), None)
        except InputError as error:
            answer = (None, InputError(str(error), parameter="resume"))
        except OSError as error:
            text = f"resume={resume} cannot be used. {refusal(error)}."
            answer = (None, InputError(text, parameter="resume"))
    choice, problem = process_group.from_rank_0(answer)
    if problem is not None:
        raise problem
    return choice
