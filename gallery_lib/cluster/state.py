"""State of a lab: a file in the cache folder, from before the lab is made until after it is gone.

Whoever changes a lab holds the lock. There is one lock for all labs of a cache folder, which the
kernel releases when its holder ends, however that happens.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gallery_lib.errors import InputError
from gallery_lib.system import files, paths
from gallery_lib.system.json_files import write_json

SCHEMA = 1
_LOCK_SECONDS = 30.0


@dataclass(frozen=True)
class CpuShare:
    """Kind of CPU share that the hosts of a lab have.

    `kind` is a quota of a cgroup (of version 1 or 2), cores of their own, or none, with the reason.
    `folder` is the lab's own cgroup; `cores` has the numbers of each host's.
    """

    kind: Literal["cgroup v1", "cgroup v2", "cores", "none"]
    folder: str | None = None
    cores: tuple[tuple[int, ...], ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Host:
    """One host of a lab.

    - `rate` is in bits per second, in either direction.
    - `cpus` are cores' worth of time.
    - `slowed` is the part of `cpus` that is left.
    """

    number: int
    address: str
    rate: int
    cpus: float
    slowed: float = 1.0
    cut: bool = False

    @property
    def name(self) -> str:
        """Return the host's name, `host0` for the first."""
        return f"host{self.number}"


@dataclass(frozen=True)
class State:
    """A lab. `keeper` is the process that holds its namespaces; `began` in seconds since the epoch.

    While it is not `complete` its maker holds the lock. If nobody does, the maker was killed.
    """

    name: str
    id: str
    began: float
    hosts: tuple[Host, ...]
    cpu: CpuShare
    keeper: int | None = None
    user_namespace: bool = False
    complete: bool = False
    schema: int = SCHEMA

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


def new_id() -> str:
    """Return eight hexadecimal digits that no lab has."""
    return secrets.token_hex(4)


def check_name(name: str) -> str:
    """Return `name` if it will do as the name of a file.

    Raises:
        InputError: for a name that will not do.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}", name):
        raise InputError(
            f"name={name!r} of a lab must be 1 to 40 letters, digits, `-` and `_`, "
            "and begin with a letter or a digit.",
            parameter="name",
        )
    return name


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
    """Context: nobody else changes a lab.

    Raises:
        InputError: when another process holds the lock for half a minute.
    """
    try:
        with files.locked(folder() / ".lock", seconds=_LOCK_SECONDS):
            yield
    except files.LockHeld:
        raise InputError(
            "another `gallery lab` is at work, and does not end. Wait for it, or end it."
        ) from None


def read(name: str) -> State | None:
    """Return the state of a lab, None when there is none.

    Raises:
        InputError: for a file that cannot be read.
    """
    path = file_of(check_name(name))
    try:
        values = json.loads(path.read_text())
        if values["schema"] != SCHEMA:
            raise InputError(
                f"{path} has schema {values['schema']}, and this version reads {SCHEMA}: "
                "take the lab down with its own.",
                parameter="schema",
            )
        cpu = values["cpu"]
        values["cpu"] = CpuShare(**{**cpu, "cores": tuple(map(tuple, cpu["cores"]))})
        values["hosts"] = tuple(Host(**host) for host in values["hosts"])
        return State(**values)
    except FileNotFoundError:
        return None
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is damaged ({error}). "
            "Delete it: its lab, if there is one, then ends by itself.",
            parameter=str(path),
        ) from None


def write(state: State) -> None:
    """Write the state to its file, which never holds half of it."""
    write_json(file_of(state.name), dataclasses.asdict(state))


def delete(state: State) -> None:
    """Delete the lab's file, unless its name has gone over to another lab."""
    with contextlib.suppress(InputError):
        kept = read(state.name)
        if kept is None or kept.id != state.id:
            return
    file_of(state.name).unlink(missing_ok=True)


def delete_half_written() -> None:
    """Delete the temporary files of writers that were killed.

    The caller holds the lock, as every writer does.
    """
    for path in folder().glob(".*.json.*"):
        path.unlink(missing_ok=True)


def names() -> list[str]:
    """Return the names of all known labs."""
    return sorted(path.stem for path in folder().glob("*.json") if not path.name.startswith("."))
