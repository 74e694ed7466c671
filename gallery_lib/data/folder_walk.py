"""List the data files below a folder, and say what is left out and why.

`walk` lists a folder and its subfolders in the order of torchvision's ImageFolder. Like
ImageFolder, `walk` follows links. Unlike ImageFolder, `walk` leaves out what cannot be an item:
hidden and empty files, broken links, pipes and devices. `walk` also leaves out links that lead back
to a folder above them. Nothing is left out silently: `LeftOut` counts each reason with an example.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from gallery_lib.errors import InputError

OTHER_ENDING = "with another ending"
HIDDEN = "hidden"
EMPTY = "empty"
BROKEN_LINK = "a broken link"
NO_FILE = "a pipe, socket or device"
LOOP = "a link to a folder above it"

_SHOWN = 5


def printable(name: str | bytes | os.PathLike[str]) -> str:
    """Return `name` on one line that any UTF-8 stream accepts.

    Control characters and invalid bytes are escaped.
    """
    text = os.fsdecode(name)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def some(names: Iterable[str]) -> str:
    """Return the first few of `names`, printable, and the total number if there are more."""
    listed = list(names)
    shown = ", ".join(printable(name) for name in listed[:_SHOWN])
    return shown + (f", … ({len(listed)} in all)" if len(listed) > _SHOWN else "")


@dataclass
class LeftOut:
    """Files and folders that are not read: a count and a first example per reason."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, example: str, count: int = 1) -> None:
        """Add `count` entries that are left out for `reason`, with an `example` of them."""
        self.counts[reason] = self.counts.get(reason, 0) + count
        self.examples.setdefault(reason, example)

    def update(self, other: LeftOut, below: str = "") -> None:
        """Add the counts of `other`; `below` is the path prefix of the examples in `other`."""
        for reason, count in other.counts.items():
            self.add(reason, f"{below}{other.examples[reason]}", count)

    def __bool__(self) -> bool:
        return bool(self.counts)

    def __str__(self) -> str:
        return ", ".join(
            f"{count} {reason} ({printable(self.examples[reason])})"
            for reason, count in self.counts.items()
        )


def walk(folder: Path | str, endings: tuple[str, ...]) -> tuple[list[str], LeftOut]:
    """Return the files below `folder` that end with one of `endings`, and what is left out.

    Endings match in upper and lower case. Paths are relative to `folder`. The walk does not follow
    a link back to a folder above it, so the walk always ends.

    Raises:
        InputError: the message names a folder which cannot be listed.
    """
    start, left_out = os.fspath(folder), LeftOut()
    # (folder relative to `folder`, with a leading slash; names of its files)
    listed: list[tuple[str, list[str]]] = []
    ahead: list[tuple[str, tuple[str, ...]]] = [("", (os.path.realpath(start),))]
    while ahead:
        # `above`: the real paths of the folders that led here, the folder's own path last
        below, above = ahead.pop()
        names, folders = [], []
        for entry in scan(start + below):
            path = f"{below[1:]}/{entry.name}" if below else entry.name
            if entry.name.startswith("."):
                left_out.add(HIDDEN, path)
            elif is_folder(entry):
                real = (
                    os.path.realpath(entry.path)
                    if entry.is_symlink()
                    else f"{above[-1]}/{entry.name}"
                )
                if any(f"{place}/".startswith(f"{real.rstrip('/')}/") for place in above):
                    left_out.add(LOOP, path)
                else:
                    folders.append((f"{below}/{entry.name}", (*above, real)))
            elif not entry.name.lower().endswith(endings):
                left_out.add(OTHER_ENDING, path)
            elif reason := unfit(entry):
                left_out.add(reason, path)
            else:
                names.append(entry.name)
        listed.append((below, names))
        ahead += reversed(folders)
    listed.sort()
    return [
        f"{below[1:]}/{name}" if below else name for below, names in listed for name in names
    ], left_out


def scan(folder: Path | str) -> list[os.DirEntry[str]]:
    """Return the entries of `folder`, sorted by name.

    Raises:
        InputError: when the folder cannot be listed.
    """
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(
            f"Cannot list the folder {printable(folder)}: {error.strerror}. Make it readable, or "
            "give another one.",
            parameter=str(folder),
        ) from error


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether `entry` is a folder or a link to a folder; a broken link is neither."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def unfit(entry: os.DirEntry[str] | Path) -> str | None:
    """Return why `entry` cannot be read as a file with content, or None if it can."""
    try:
        status = entry.stat()
    except OSError:
        return BROKEN_LINK
    if not stat.S_ISREG(status.st_mode):
        return NO_FILE
    return None if status.st_size else EMPTY
