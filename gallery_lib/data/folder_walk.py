"""Which files below a folder are data, and which are left out and for what reason.

`walk` lists a folder, and the folders below it, in the order of torchvision's ImageFolder, and follows links as it does.
Unlike it, `walk` leaves out what cannot be an item (hidden and empty files, broken links, pipes and devices) and links
that lead back to a folder above them. Nothing is left out in silence: `LeftOut` counts each reason with an example.
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
    """Return `name` on one line that any UTF-8 stream takes; control characters and invalid bytes are escaped."""
    text = os.fsdecode(name)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def some(names: Iterable[str]) -> str:
    """Return the first few of `names`, printable, with their number where there are more."""
    listed = list(names)
    shown = ", ".join(printable(name) for name in listed[:_SHOWN])
    return shown + (f", … ({len(listed)} in all)" if len(listed) > _SHOWN else "")


@dataclass
class LeftOut:
    """Files and folders that are not read: their number by reason, and the first of each."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, example: str, count: int = 1) -> None:
        """Count another one of `reason`."""
        self.counts[reason] = self.counts.get(reason, 0) + count
        self.examples.setdefault(reason, example)

    def update(self, other: LeftOut, below: str = "") -> None:
        """Count what `other` holds as well; its examples lie in the folder `below`."""
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
    """Return the files below `folder` whose name ends with one of `endings` (any case), and what is left out.

    Paths are relative to `folder`. A link that leads nowhere new ends there, so the walk always ends. Raises
    InputError that names a folder which cannot be listed.
    """
    start, left_out = os.fspath(folder), LeftOut()
    listed: list[tuple[str, list[str]]] = []  # by folder, relative, with a slash before it
    ahead: list[tuple[str, tuple[str, ...]]] = [("", (os.path.realpath(start),))]
    while ahead:
        below, above = (
            ahead.pop()
        )  # `above`: the real paths of the folders that led here, its own last
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
    """Return the entries of `folder`, by name. Raises InputError when it cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(
            f"Cannot list the folder {printable(folder)}: {error.strerror}. Make it readable, or give another one."
        ) from error


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether `entry` is a folder, or a link to one; a link that leads nowhere is none."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def unfit(entry: os.DirEntry[str] | Path) -> str | None:
    """Return why `entry` cannot be read as a file with content, None where it can."""
    try:
        found = entry.stat()
    except OSError:
        return BROKEN_LINK
    if not stat.S_ISREG(found.st_mode):
        return NO_FILE
    return None if found.st_size else EMPTY
