"""Checkpoints on the disk: `checkpoints/step-00000120/`, whole or not there, and which to use.

A checkpoint is written beside its name under a hidden one, and renamed last. It is deleted in the
same way. So a folder of the name is a whole checkpoint, unless a disk or a person has damaged it.
The manifest, written after all other files, has length and digest of each of them. Digests find
damage, not forgery. Needs no torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from gallery_lib.console.exit_code import refusal
from gallery_lib.errors import InputError
from gallery_lib.system.json_files import read_json, write_json

CHECKPOINTS = "checkpoints"
AUTO = "auto"
"""Word of `--resume` for the newest checkpoint."""
MANIFEST = "manifest.json"
FORMAT = 3
"""Format of checkpoints. It goes up when another version of this package could misread one."""
_NAME = re.compile(r"step-(\d{8,})")


def of_step(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint after `step` in a folder of checkpoints."""
    return folder / f"step-{step:08d}"


def newest_first(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the one with the most steps first."""
    if not folder.is_dir():
        return []
    named = [path for path in folder.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(named, key=lambda path: int(path.name.removeprefix("step-")), reverse=True)


# --------------------------------------------------------------------------------------------------
# Writing.


def unfinished(folder: Path, step: int) -> Path:
    """Return the path under which the checkpoint after `step` is written."""
    return folder / f".{of_step(folder, step).name}.tmp"


def begin(folder: Path, step: int) -> None:
    """Make an empty folder for the checkpoint after `step`; remove what a killed process left."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(".*.tmp"):
        shutil.rmtree(left, ignore_errors=True)
    unfinished(folder, step).mkdir()


def finish(folder: Path, manifest: Manifest, keep: int) -> None:
    """Write the manifest, give the checkpoint its name, delete all but the newest `keep`.

    All other files are on the disk by then, so it also survives a power failure.
    """
    written, path = unfinished(folder, manifest.step), of_step(folder, manifest.step)
    signed = dataclasses.replace(manifest, digest=_digest(manifest))
    write_json(written / MANIFEST, dataclasses.asdict(signed))
    synchronize(written)
    if path.exists():  # of a run that had come further
        _remove(path)
    written.rename(path)
    synchronize(folder)
    for old in newest_first(folder)[keep:]:
        _remove(old)


def _remove(path: Path) -> None:
    hidden = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
    path.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def synchronize(path: Path) -> None:
    """Wait until a file or a folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _set_aside(path: Path, why: str) -> Path:
    aside = path.with_name(f"{why}-{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    return aside


def set_aside_later(path: Path) -> list[Path]:
    """Rename the checkpoints with more steps than `path`, which a training leaves behind."""
    folder = newest_first(path.parent)
    return [_set_aside(one, "left") for one in folder[: folder.index(path)]]


# --------------------------------------------------------------------------------------------------
# The manifest.


class Unusable(InputError):
    """A checkpoint that cannot be used. `damaged`: its files are not what was written."""

    def __init__(self, path: Path, reason: str, *, damaged: bool = False) -> None:
        super().__init__(f"{path} {reason}", parameter="resume")
        self.damaged = damaged


@dataclass(frozen=True)
class FileFacts:
    """Length of a file in bytes, and the XXH3 digest of its content in hexadecimal digits."""

    bytes: int
    xxh3_128: str


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint consists of, and of which training it is."""

    step: int
    world_size: int
    files: dict[str, FileFacts]
    facts: dict[str, Any] = field(default_factory=dict)
    """What the training says of itself: versions, its options where it is a run."""
    format: int = FORMAT
    digest: str = ""


def facts_of(path: Path) -> FileFacts:
    """Return length and digest of the file at `path`, which is read whole."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
        return FileFacts(os.fstat(file.fileno()).st_size, digest)


def _digest(manifest: Manifest) -> str:
    values = dataclasses.asdict(dataclasses.replace(manifest, digest=""))
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def read_whole(path: Path) -> Manifest:
    """Return the manifest of the checkpoint at `path`, all of whose files are as they were written.

    Raises:
        Unusable: it is damaged, or of another version.
    """
    try:
        number = read_json(path / MANIFEST, dict[str, Any], again="").get("format")
        if isinstance(number, int) and number != FORMAT:
            raise Unusable(
                path,
                f"has format {number}, and this version reads {FORMAT}: go on with the version "
                "that wrote it, or load its weights.safetensors.",
            )
        manifest = read_json(path / MANIFEST, Manifest, again="")
        damage = _damage(path, manifest)
    except FileNotFoundError:
        damage = f"{MANIFEST} is missing"
    except Unusable:
        raise
    except InputError as error:
        damage = str(error).strip().rstrip(".")
    if damage:
        raise Unusable(path, f"is damaged: {damage}.", damaged=True)
    return manifest


def _damage(path: Path, manifest: Manifest) -> str:
    if manifest.digest != _digest(manifest):
        return f"{MANIFEST} does not have the digest it names"
    for name, facts in manifest.files.items():
        try:
            size = (path / name).stat().st_size
            if size != facts.bytes:
                return f"{name} has {size} bytes, and {facts.bytes} were written"
            if facts_of(path / name) != facts:
                return f"{name} has another content than was written"
        except OSError as error:
            return f"{name}: {error.strerror}"
    return ""


# --------------------------------------------------------------------------------------------------
# The checkpoint to go on from.


@dataclass(frozen=True)
class Choice:
    """A whole checkpoint, and what was refused before it, in sentences."""

    path: Path
    manifest: Manifest
    refused: list[str] = field(default_factory=list)


def newest_whole(folder: Path, *, set_aside: bool = False) -> Choice | None:
    """Return the newest whole checkpoint in a folder; None where there is none at all.

    Args:
        folder: a folder of checkpoints.
        set_aside: rename those that are damaged.

    Raises:
        InputError: all that are there are damaged, or the newest whole one is of another version.
    """
    refused: list[str] = []
    for path in newest_first(folder):
        try:
            return Choice(path, read_whole(path), refused)
        except Unusable as error:
            if not error.damaged:
                raise
            reason = str(error)
        if set_aside:
            with contextlib.suppress(OSError):  # a folder that may only be read
                reason += f" It is kept as {_set_aside(path, 'damaged').name}."
        refused.append(reason)
    if refused:
        raise InputError(
            f"{folder} has no whole checkpoint. {' '.join(refused)}", parameter="resume"
        )
    return None


def place_of(path: Path) -> Path:
    """Return the checkpoint that `path` names, or else the folder of those in it or its run.

    What is in a checkpoint is not looked at.

    Raises:
        InputError: the path names no checkpoint.
    """
    try:
        if path.is_dir() and (_NAME.fullmatch(path.absolute().name) or (path / MANIFEST).exists()):
            return path
        for place in (path, path / CHECKPOINTS):
            if newest_first(place):
                return place
        what = "is a file" if path.is_file() else "holds no checkpoint"
        what = what if path.exists() else "does not exist"
    except OSError as error:
        what = f"cannot be used: {refusal(error)}"
    raise InputError(
        f"resume={path} {what}. Name a checkpoint, such as RUN_DIR/checkpoints/step-00000120, or "
        "the folder of its run.",
        parameter="resume",
    )


def named(path: Path) -> Choice:
    """Return the checkpoint that a path names: itself, or the newest whole one in a folder.

    Raises:
        InputError: there is none, or it cannot be used.
    """
    place = place_of(path)
    return newest_whole(place) or Choice(place, read_whole(place))
