"""Read a folder of the user's: its files, its text, what is left out, and all that is wrong.

`walk` lists a folder and its subfolders in the order of torchvision's ImageFolder, and follows
links as that does. Unlike ImageFolder it leaves out what cannot be an item: hidden and empty files,
broken links, pipes, devices, and links that lead back to a folder above them. Nothing is left out
silently: `LeftOut` counts each reason with an example.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gallery_lib.errors import InputError

SPLITS = ("train", "val")
HIDDEN = "hidden"
_SHOWN = 5
_FAULTS_SHOWN = 20


def printable(name: str | bytes | os.PathLike[str]) -> str:
    """Return `name` on one line that any UTF-8 stream accepts.

    Control characters and invalid bytes are escaped.
    """
    text = os.fsdecode(name)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def some(names: Iterable[str]) -> str:
    """Return the first few of `names`, printable, and the total number if there are more."""
    listed = list(names)
    shown = ", ".join(printable(name) for name in listed[:_SHOWN])
    return shown + (f", … ({len(listed)} in all)" if len(listed) > _SHOWN else "")


def unfit_file(path: str | bytes | os.PathLike[str], problem: str) -> InputError:
    """Return the error about a file of the user's, with its path and what is wrong with it."""
    return InputError(f"{printable(path)}: {problem}", parameter=os.fsdecode(path))


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

    def notice(self, folder: Path) -> tuple[str, ...]:
        """Return the line about what is left out of `folder`, or none."""
        return (f"left out of {printable(folder)}: {self}",) if self.counts else ()

    def __str__(self) -> str:
        return ", ".join(
            f"{count} {reason} ({printable(self.examples[reason])})"
            for reason, count in self.counts.items()
        )


def walk(folder: Path | str, endings: tuple[str, ...]) -> tuple[list[str], LeftOut]:
    """Return the files below `folder` that end with one of `endings`, and what is left out.

    Endings match in upper and lower case. Paths are relative to `folder`. The walk always ends: a
    link back to a folder above it is not followed. InputError names a folder that cannot be listed.
    """
    left_out = LeftOut()
    listed: list[tuple[str, list[str]]] = []  # folder below `folder` with a leading slash, files

    def visit(place: str, below: str, above: tuple[str, ...]) -> None:
        names: list[str] = []
        above = (*above, os.path.realpath(place))
        for entry in scan(place):
            path = f"{below}/{entry.name}"
            if reason := _unfit(entry, endings, above):
                left_out.add(reason, path[1:])
            elif entry.is_dir():
                visit(entry.path, path, above)
            else:
                names.append(entry.name)
        listed.append((below, names))

    visit(os.fspath(folder), "", ())
    listed.sort()
    return [f"{below}/{name}"[1:] for below, names in listed for name in names], left_out


def _unfit(entry: os.DirEntry[str], endings: tuple[str, ...], above: tuple[str, ...]) -> str | None:
    """Return why a file or folder is left out, or None; `above` are the real folders above it."""
    if entry.name.startswith("."):
        return HIDDEN
    try:
        if entry.is_dir():
            target = f"{os.path.realpath(entry.path).rstrip('/')}/"
            back = entry.is_symlink() and any(f"{one}/".startswith(target) for one in above)
            return "a link to a folder above it" if back else None
        if not entry.name.lower().endswith(endings):
            return "with another ending"
        status = entry.stat()
    except OSError:
        return "a broken link"
    if not stat.S_ISREG(status.st_mode):
        return "a pipe, socket or device"
    return None if status.st_size else "empty"


def scan(folder: Path | str) -> list[os.DirEntry[str]]:
    """Return the entries of `folder`, sorted by name; raise InputError if it cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(
            f"Cannot list the folder {printable(folder)}: {error.strerror}. Make it readable, or "
            "give another one.",
            parameter=str(folder),
        ) from error


def existing(folder: Path | str, what: str, hint: str, part: str = "", expected: str = "") -> Path:
    """Return the folder, or its subfolder `part`, as an absolute path.

    `what` is the folder's name in a message, `hint` says what to give instead, and `expected` is a
    pattern of files in the subfolder. InputError says that it is missing, a file or not readable.
    """
    folder = Path(folder).expanduser().absolute()
    try:
        if (folder / part).is_dir():
            return folder / part
        state = "is a file" if folder.is_file() else "" if folder.is_dir() else "does not exist"
    except OSError as error:  # the name is too long, or a folder on the way may not be entered
        raise InputError(
            f"Cannot read the {what} {printable(folder)}: {error.strerror}.", parameter="data_dir"
        ) from error
    if not state:
        state = f"has no {part}/ in it; expected {expected}. It holds "
        state += some(entry.name for entry in scan(folder)) or "nothing"
        if folder.name in ("train", "val"):
            state += f". Did you mean its parent, {printable(folder.parent)}?"
    raise InputError(f"The {what} {printable(folder)} {state}. {hint}", parameter="data_dir")


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, or raise InputError that names it."""
    try:
        return path.read_bytes()
    except OSError as error:
        problem = f"{error.strerror}. Make it readable, or take it out of the folder."
        raise unfit_file(path, problem) from error


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file, without a byte-order mark; refuse any other."""
    try:
        text = read_bytes(path).decode("utf-8-sig")
        if "\0" not in text:
            return text
        reason = "it has zero bytes, as UTF-16 has"
    except UnicodeDecodeError as error:
        reason = f"byte 0x{error.object[error.start]:02x} at position {error.start}"
    raise unfit_file(
        path,
        f"it is not UTF-8 text: {reason}. Convert it (iconv -t utf-8), or take it out of the "
        "folder.",
    )


@dataclass(frozen=True)
class Summary:
    """What a checked folder holds, in words, and the lines that a run prints about it."""

    root: Path
    holds: str
    notices: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([f"{printable(self.root)}: {self.holds}, all fine", *self.notices])


class Faults:
    """Collection of errors, so that a check names all of them in one run."""

    def __init__(self) -> None:
        self._errors: list[InputError] = []

    def add(self, message: str) -> None:
        """Add an error about the data folder."""
        self._errors.append(InputError(message, parameter="data_dir"))

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Context: an InputError is kept instead of raised."""
        try:
            yield
        except InputError as error:
            self._errors.append(error)

    def refuse(self) -> None:
        """Raise InputError with all faults, the first 20 in words."""
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            lines = [str(error) for error in self._errors[:_FAULTS_SHOWN]]
            if more := len(self._errors) - len(lines):
                lines.append(f"… and {more} more")
            raise InputError(
                f"{len(self._errors)} faults were found:\n  " + "\n  ".join(lines),
                parameter=self._errors[0].parameter,
            )
