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

HIDDEN = "hidden"
_SHOWN = 5
_FAULTS_SHOWN = 20


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

    def held(self, otherwise: str = "") -> str:
        """Return what a folder without any fit file holds, after a space."""
        return f" It holds {self}." if self.counts else otherwise

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
    start, left_out = os.fspath(folder), LeftOut()
    # (folder relative to `folder`, with a leading slash; names of its files)
    listed: list[tuple[str, list[str]]] = []
    pending: list[tuple[str, tuple[str, ...]]] = [("", (os.path.realpath(start),))]
    while pending:
        # `ancestors`: the real paths of the folders that led here, the folder's own path last
        below, ancestors = pending.pop()
        names, folders = [], []
        for entry in scan(start + below):
            path = f"{below[1:]}/{entry.name}" if below else entry.name
            if entry.name.startswith("."):
                left_out.add(HIDDEN, path)
            elif is_folder(entry):
                linked = entry.is_symlink()
                real = os.path.realpath(entry.path) if linked else f"{ancestors[-1]}/{entry.name}"
                if any(f"{ancestor}/".startswith(f"{real.rstrip('/')}/") for ancestor in ancestors):
                    left_out.add("a link to a folder above it", path)
                else:
                    folders.append((f"{below}/{entry.name}", (*ancestors, real)))
            elif not entry.name.lower().endswith(endings):
                left_out.add("with another ending", path)
            elif reason := _unfit(entry):
                left_out.add(reason, path)
            else:
                names.append(entry.name)
        listed.append((below, names))
        pending += reversed(folders)
    listed.sort()
    return [
        f"{below[1:]}/{name}" if below else name for below, names in listed for name in names
    ], left_out


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


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether `entry` is a folder or a link to a folder; a broken link is neither."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _unfit(entry: os.DirEntry[str]) -> str | None:
    """Return why `entry` cannot be read as a file with content, or None if it can."""
    try:
        status = entry.stat()
    except OSError:
        return "a broken link"
    if not stat.S_ISREG(status.st_mode):
        return "a pipe, socket or device"
    return None if status.st_size else "empty"


def existing(folder: Path | str, what: str, hint: str, part: str = "", expected: str = "") -> Path:
    """Return the folder, or its subfolder `part`, as an absolute path.

    `what` is the folder's name in a message, `hint` says what to give instead, and `expected` is a
    pattern of files in the subfolder. InputError says that it is missing, a file or not readable.
    """
    folder = Path(folder).expanduser().absolute()
    shown = f"The {what} {printable(folder)}"
    try:
        state = "" if folder.is_dir() else "is a file" if folder.exists() else "does not exist"
        if state:
            raise InputError(f"{shown} {state}. {hint}", parameter="data_dir")
        if (folder / part).is_dir():
            return folder / part
    except OSError as error:  # the name is too long, or a folder on the way may not be entered
        raise InputError(
            f"Cannot read the {what} {printable(folder)}: {error.strerror}.", parameter="data_dir"
        ) from error
    names = [entry.name for entry in scan(folder) if is_folder(entry)]
    holds = f"It holds {some(names)}." if names else "It holds no folders."
    if folder.name in ("train", "val"):
        holds += f" Did you mean its parent, {printable(folder.parent)}?"
    raise InputError(
        f"{shown} has no {part}/ in it; expected {expected}. {holds} {hint}", parameter="data_dir"
    )


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, or raise InputError that names it."""
    try:
        return path.read_bytes()
    except OSError as error:
        problem = f"{error.strerror}. Make it readable, or take it out of the folder."
        raise unfit_file(path, problem) from error


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file, without a byte-order mark; refuse any other."""
    data = read_bytes(path)
    try:
        text = data.decode("utf-8-sig")
        if "\0" not in text:
            return text
        reason, encoding = "it has zero bytes, as UTF-16 has", "utf-16"
    except UnicodeDecodeError as error:
        reason = f"byte 0x{data[error.start]:02x} at position {error.start}"
        encoding = "utf-16" if b"\0" in data else "latin1"
    raise unfit_file(
        path,
        f"it is not UTF-8 text: {reason}. Convert it (iconv -f {encoding} -t utf-8, perhaps), or "
        "take it out of the folder.",
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
