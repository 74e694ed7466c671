"""Manifest of a checkpoint: its format, its step, and length and digest of each of its files.

The manifest is written after all other files. It has a digest of its own content. Digests find
damage, not forgery; `digests` says which they are.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gallery_lib.checkpoint import digests
from gallery_lib.errors import InputError
from gallery_lib.system.json_files import read_json, write_json

FILE = "manifest.json"
FORMAT = 2
"""Format of checkpoints. It goes up when older versions of this package could misread one.

In format 1 every digest of a file was a SHA-256.
"""


class Unusable(InputError):
    """A checkpoint that cannot be used. `damaged`: its files are not what was written."""

    def __init__(self, path: Path, reason: str, *, damaged: bool = False) -> None:
        super().__init__(f"{path} {reason}", parameter="resume")
        self.damaged = damaged


@dataclass(frozen=True)
class FileFacts:
    """Length of a file in bytes, and a digest of its content in hexadecimal digits.

    One of the digests is there, the other is empty.
    """

    bytes: int
    sha256: str = ""
    xxh3_128: str = ""


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


def facts_of(path: Path, like: FileFacts | None = None) -> FileFacts:
    """Return length and digest of the file at `path`, which is read whole.

    Args:
        path: the file.
        like: facts whose kind of digest is taken; by default that of new files.

    Raises:
        digests.Missing: what computes that digest is not installed.
    """
    name = digests.NAME if like is None else digests.XXH3 if like.xxh3_128 else digests.SHA
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: digests.new(name)).hexdigest()
    return file_facts(path.stat().st_size, name, digest)


def file_facts(length: int, name: str, digest: str) -> FileFacts:
    """Return the facts of a file of `length` bytes with the digest that `digests.new(name)` has."""
    return FileFacts(length, **{name: digest})


def _values(manifest: Manifest) -> dict[str, Any]:
    """Return the manifest as it is written: without the digests that files do not have."""
    values = dataclasses.asdict(manifest)
    files = values["files"].items()
    return values | {"files": {n: {k: v for k, v in file.items() if v != ""} for n, file in files}}


def _digest(manifest: Manifest) -> str:
    values = _values(dataclasses.replace(manifest, digest=""))
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def write(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of the checkpoint in `folder`."""
    signed = dataclasses.replace(manifest, digest=_digest(manifest))
    write_json(folder / FILE, _values(signed))


def read(folder: Path) -> Manifest:
    """Return the manifest of a checkpoint, and check its format.

    Raises:
        Unusable: it is missing, damaged, or of a newer version.
    """
    try:
        values = read_json(folder / FILE, dict[str, Any], again="")
        number = values.get("format")
        if isinstance(number, int) and number > FORMAT:
            raise Unusable(
                folder,
                f"has format {number}, and this version reads up to {FORMAT}: go on with the "
                "version that wrote it, or a newer one.",
            )
        manifest = read_json(folder / FILE, Manifest, again="")
    except FileNotFoundError:
        raise Unusable(folder, f"is damaged: {FILE} is missing.", damaged=True) from None
    except Unusable:
        raise
    except InputError as error:
        text = str(error).strip().rstrip(".")
        raise Unusable(folder, f"is damaged: {text}.", damaged=True) from None
    if manifest.digest != _digest(manifest):
        raise Unusable(
            folder, f"is damaged: {FILE} does not have the digest it names.", damaged=True
        )
    return manifest


def check_files(folder: Path, manifest: Manifest) -> None:
    """Compare all files of a checkpoint with its manifest.

    Raises:
        Unusable: a file is missing or has another content, or its digest cannot be computed.
    """
    for name, facts in manifest.files.items():
        path = folder / name
        try:
            size = path.stat().st_size
            reason = (
                f"{name} has {size} bytes, and {facts.bytes} were written"
                if size != facts.bytes
                else f"{name} has another content than was written"
                if facts_of(path, facts) != facts
                else ""
            )
        except digests.Missing as error:
            raise Unusable(folder, f"cannot be checked: {error}") from None
        except OSError as error:
            reason = f"{name}: {error.strerror}"
        if reason:
            raise Unusable(folder, f"is damaged: {reason}.", damaged=True)
