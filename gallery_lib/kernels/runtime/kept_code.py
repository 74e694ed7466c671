"""Our machine code on disk: each file in a private folder, with its digest beside it.

A build takes seconds where the code is not on disk yet, so observers can tell whoever waits.

Nobody else may write into the folder. A file may still differ from what was written: a full disk
cut it off, or something overwrote it. It is built anew, since loading it could end the process.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from gallery_lib.system import files, paths

_observers: list[tuple[Callable[[], None], Callable[[], None]]] = []


def folder(name: str) -> Path:
    """Return the cache's folder of that name, created if necessary.

    Where the folder cannot be created it stays missing: nothing is found in it, and nothing can be
    kept.

    Raises:
        InputError: where others may write into it.
    """
    path = paths.cache_dir() / name
    try:
        return paths.code_folder(path)
    except OSError:  # a cache that cannot be written
        return path


def sound(file: Path) -> bool:
    """Return whether the file exists and matches its digest."""
    there = file.is_file() and _note(file).is_file()
    return there and _note(file).read_bytes() == _digest(file.read_bytes())


def keep(file: Path, content: bytes) -> None:
    """Write the file and its digest, each whole or not at all.

    Raises:
        OSError: where the folder cannot be written.
    """
    for path, text in ((_note(file), _digest(content)), (file, content)):  # the file itself last
        with files.atomic_write(path, "wb") as kept:
            os.fchmod(kept.fileno(), 0o600)  # whatever the umask, nobody else may write
            kept.write(text)


def _note(file: Path) -> Path:
    return file.with_name(f"{file.name}.sha256")


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


@contextlib.contextmanager
def observed(began: Callable[[], None], ended: Callable[[], None]) -> Iterator[None]:
    """Call `began` and `ended` around each build while the body runs."""
    _observers.append((began, ended))
    try:
        yield
    finally:
        _observers.remove((began, ended))


@contextlib.contextmanager
def build() -> Iterator[None]:
    """Tell every observer that a build begins, and that it ends with the `with` block."""
    observers = list(_observers)
    for began, _ in observers:
        began()
    try:
        yield
    finally:
        for _, ended in observers:
            ended()
