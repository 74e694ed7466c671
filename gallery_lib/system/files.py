"""Files and locks that several processes share: atomic writes, and one holder at a time.

with atomic_write(path) as file:
    file.write(text)
with locked(folder, waiting=lambda: print("waiting for another process")):
    ...
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Literal


class LockHeld(Exception):
    """Another process holds the lock."""


@contextlib.contextmanager
def atomic_write(
    path: Path, mode: Literal["w", "wb"] = "w", *, sync: bool = False
) -> Iterator[IO[Any]]:
    """Context: a file to write to, which becomes `path` when the block ends without an exception.

    The file is written beside `path` under a hidden name, then renamed. So `path` is never half
    written, and after an exception it is what it was before. Only a killed process leaves its
    temporary file behind, which `is_temporary` recognises. Text is UTF-8. `sync` waits until the
    content is on the disk, so that it also survives a power failure.

    Raises:
        OSError: the message names `path`.
    """
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
    encoding = "utf-8" if mode == "w" else None
    try:
        with temporary.open(mode.replace("w", "x"), encoding=encoding) as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        # An error of writing to an open file names no file.
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise


_said: set[Path] = set()


@contextlib.contextmanager
def written_if_possible(folder: Path) -> Iterator[None]:
    """Context: write something to a run's folder that the run can do without.

    A disk that is full for a minute does not end a training of days. The first failure is printed.
    """
    try:
        yield
    except OSError as error:
        if folder not in _said:
            _said.add(folder)
            lost = "lines of the log are lost meanwhile, and the run goes on"
            print(f"{folder} cannot be written to ({error.strerror or error}): {lost}", flush=True)


def is_temporary(name: str) -> bool:
    """Return whether a file of that name is a temporary file of `atomic_write`."""
    return name.startswith(".") and name.endswith(".tmp")


@contextlib.contextmanager
def locked(
    path: Path, *, waiting: Callable[[], object] = lambda: None, wait: bool = True
) -> Iterator[None]:
    """Context: this process holds the exclusive flock(1) of a folder, or of a file for the lock.

    A folder is locked as such, so a read-only one can be locked too. A lock file is created where
    it is missing, and stays. The kernel releases the lock when its holder ends, however it ends. A
    process that is forked meanwhile holds it as well; a command that is started does not.

    Args:
        path: the folder or the lock file.
        waiting: called once if another process holds the lock.
        wait: whether to wait for another process.

    Raises:
        LockHeld: another process holds the lock, which is not to be waited for.
        OSError: the file cannot be opened or locked.
    """
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    descriptor = os.open(path, flags, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                raise LockHeld(f"another process holds the lock of {path}") from None
            waiting()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
