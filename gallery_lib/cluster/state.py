"""State of a lab: a file in the cache folder, from before the lab is made until after it is gone.

Whoever changes a lab holds the lock. There is one lock for all labs of a cache folder, which the
kernel releases when its holder ends, however that happens.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gallery_lib.errors import InputError
from gallery_lib.system import files, paths
from gallery_lib.system.json_files import read_json, write_json

SCHEMA = 1
_LOCK_SECONDS = 30.0


@dataclass(frozen=True)
class CpuShare:
    """CPU share of each host: a quota of a cgroup, cores of its own, or none, with the reason."""

    kind: Literal["cgroup v1", "cgroup v2", "cores", "none"]
    folder: str | None = None  # the lab's own cgroup
    cores: tuple[tuple[int, ...], ...] = ()  # of each host
    reason: str = ""


@dataclass(frozen=True)
class Host:
    """One host of a lab."""

    number: int
    address: str
    rate: int  # bits per second, in either direction
    cpus: float  # cores' worth of time
    slowed: float = 1.0  # the part of `cpus` that is left
    cut: bool = False

    @property
    def name(self) -> str:
        """Return the host's name, `host0` for the first."""
        return f"host{self.number}"


@dataclass(frozen=True)
class State:
    """A lab. While it is not `complete` its maker holds the lock, or was killed."""

    name: str
    id: str
    began: float  # in seconds since the epoch
    hosts: tuple[Host, ...]
    cpu: CpuShare
    keeper: int | None = None  # the process that holds its namespaces
    user_namespace: bool = False
    complete: bool = False

    @property
    def mark(self) -> str:
        """Return the name of the network device that only this lab's namespaces have."""
        return f"lab-{self.id}"

    def changed(self, host: int, **values: Any) -> State:
        """Return a copy with other values for one host."""
        hosts = tuple(
            dataclasses.replace(h, **values) if h.number == host else h for h in self.hosts
        )
        return dataclasses.replace(self, hosts=hosts)


def check_name(name: str) -> None:
    """Raise InputError for a name that will not do as the name of a file."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}", name):
        raise InputError(
            f"name={name!r} of a lab must be 1 to 40 letters, digits, `-` and `_`, "
            "and begin with a letter or a digit.",
            parameter="name",
        )


def folder() -> Path:
    """Return the folder of the labs' files; it is made if it does not exist."""
    path = paths.cache_dir() / "lab"
    path.mkdir(parents=True, exist_ok=True)
    return path


def file_of(name: str) -> Path:
    """Return the file of a lab, whether it exists or not."""
    return folder() / f"{name}.json"


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Context: nobody else changes a lab; InputError where another holds the lock for long."""
    try:
        with files.locked(folder() / ".lock", seconds=_LOCK_SECONDS):
            yield
    except files.LockHeld:
        raise InputError(
            "another `gallery lab` is at work, and does not end. Wait for it, or end it."
        ) from None


def read(name: str) -> State | None:
    """Return the state of a lab, None when there is none; InputError for a damaged file."""
    check_name(name)
    again = "Delete it: its lab, if there is one, then ends by itself."
    try:
        return read_json(file_of(name), State, again=again, schema=SCHEMA)
    except FileNotFoundError:
        return None


def write(state: State) -> None:
    """Write the state to its file, which never holds half of it."""
    write_json(file_of(state.name), {**dataclasses.asdict(state), "schema": SCHEMA})


def delete(state: State) -> None:
    """Delete the lab's file, unless its name has gone over to another lab."""
    with contextlib.suppress(InputError):
        kept = read(state.name)
        if kept is None or kept.id != state.id:
            return
    file_of(state.name).unlink(missing_ok=True)


def names() -> list[str]:
    """Return the names of all known labs."""
    return sorted(path.stem for path in folder().glob("*.json") if not path.name.startswith("."))
