"""State of a lab: a file in the cache folder, from before the lab is made until after it is gone.

Whoever changes a lab holds the lock. There is one lock for all labs of a cache folder, which the
kernel releases when its holder ends, however that happens.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path

from gallery_lib.errors import InputError
from gallery_lib.system import files, paths
from gallery_lib.system.files import read_json, write_json


@dataclass(frozen=True)
class CpuShare:
    """CPU share of each host: a quota of a cgroup, cores of its own, both, or none."""

    version: int = 0  # of the cgroup
    folder: str | None = None  # the lab's own cgroup
    cores: tuple[tuple[int, ...], ...] = ()  # of each host


@dataclass(frozen=True)
class Host:
    """One host of a lab."""

    number: int
    address: str
    rate: int  # bits per second, in either direction
    cpus: float  # cores' worth of time

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


def folder() -> Path:
    """Return the folder of the labs' files; it is made if it does not exist."""
    path = paths.cache_dir() / "lab"
    path.mkdir(parents=True, exist_ok=True)
    return path


def file_of(name: str) -> Path:
    """Return the file of a lab, whether it exists or not; InputError for no name of a file."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}", name):
        raise InputError(
            f"name={name!r} of a lab must be 1 to 40 letters, digits, `-` and `_`, "
            "and begin with a letter or a digit.",
            parameter="name",
        )
    return folder() / f"{name}.json"


def locked() -> contextlib.AbstractContextManager[None]:
    """Context: nobody else changes a lab."""
    return files.locked(folder() / ".lock")


def read(name: str) -> State | None:
    """Return the state of a lab, None when there is none; InputError for a damaged file."""
    try:
        return read_json(
            file_of(name), State, again="Delete it: its lab, if there is one, then ends by itself."
        )
    except FileNotFoundError:
        return None


def write(state: State) -> None:
    """Write the state to its file, which never holds half of it."""
    write_json(file_of(state.name), dataclasses.asdict(state))


def delete(state: State) -> None:
    """Delete the lab's file, unless its name has gone over to another lab."""
    kept = read(state.name)
    if kept is not None and kept.id == state.id:
        file_of(state.name).unlink()


def names() -> list[str]:
    """Return the names of all known labs."""
    return sorted(path.stem for path in folder().glob("*.json") if not path.name.startswith("."))
