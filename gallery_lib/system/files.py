"""Files that processes share: atomic writes, locks, JSON of a declared shape, private folders."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Literal, TypeVar

from gallery_lib.errors import InputError


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
    content is on the disk, so that it also survives a power failure. An OSError names `path`.
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
    process that is forked meanwhile holds it as well; a command that is started does not. If
    another process holds the lock, `waiting` is called once; without `wait` that is a LockHeld.
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


T = TypeVar("T")
_LARGEST = 1e300  # number in a file: far above what is measured; products of a few stay finite


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON to `path`, which never holds half; NaN is a ValueError."""
    with atomic_write(path, sync=True) as file:
        json.dump(value, file, indent=1, allow_nan=False)


def read_json(path: Path, shape: type[T], *, again: str, schema: int | None = None) -> T:
    """Return the file's content as `shape`: a dataclass, a container, or a type with alternatives.

    Where `schema` is given, the file must have that number under `schema`. An InputError ends in
    `again`, which says what to do about a file that cannot be used.

    Raises:
        FileNotFoundError: there is no such file.
        InputError: it cannot be read, is no JSON, of another schema, or does not have the shape.
    """
    import msgspec  # which a machine for kernels alone has not

    place = str(path)
    try:
        text = path.read_bytes()
        value = json.loads(text, parse_constant=_number, parse_float=_number, parse_int=_number)
        if schema is not None:
            found = value.get("schema") if isinstance(value, dict) else None
            if found != schema:
                what = f"has schema {found!r}, and this version reads {schema}"
                raise InputError(f"{path} {what}. {again}", parameter="schema")
        return msgspec.convert(value, shape)
    except (FileNotFoundError, InputError):
        raise
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    except msgspec.ValidationError as error:
        words, _, where = str(error).partition(" - at `$")
        place = where.rstrip("`").lstrip(".") or str(path)
        problem = f"is damaged, or of another version: {where and place + ': '}{words}"
    except (ValueError, RecursionError) as error:
        problem = f"is damaged, or of another version: it is no JSON ({error})"
    raise InputError(f"{path} {problem}. {again}", parameter=place)


def _number(text: str) -> float:
    if not abs(float(text)) < _LARGEST:
        raise ValueError(f"{text[:20]} is no finite number")
    return int(text) if text.lstrip("-").isdigit() else float(text)


_FOLDERS_PREFIX = "gallery-sockets-"
_NEW_SECONDS = 60  # a younger folder may not have its owner's lock yet
_LONGEST_BASE = 60  # bytes: a socket may have 107, of which the folder's name and its own take 42


class PrivateFolder:
    """A new folder, `path`, that nobody else may enter, until `close`."""

    def __init__(self) -> None:
        bases = [
            base
            for base in ("/dev/shm", tempfile.gettempdir(), "/tmp")
            if len(os.fsencode(base)) <= _LONGEST_BASE and os.access(base, os.W_OK)
        ]
        self.path = Path(tempfile.mkdtemp(prefix=_FOLDERS_PREFIX, dir=next(iter(bases), None)))
        self._lock = contextlib.ExitStack()
        self._lock.enter_context(locked(self.path))

    def close(self) -> None:
        """Remove the folder, and those of this user whose owners were killed.

        An owner that lives holds the lock of its folder.
        """
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()
        for folder in self.path.parent.glob(f"{_FOLDERS_PREFIX}*"):
            with contextlib.suppress(OSError, LockHeld):
                status = folder.stat()
                age = time.time() - status.st_mtime
                if status.st_uid == os.geteuid() and age > _NEW_SECONDS:
                    with locked(folder, wait=False):
                        shutil.rmtree(folder, ignore_errors=True)
