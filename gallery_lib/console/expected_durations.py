"""Expected durations of a command's phases, from earlier runs on this machine.

They are the grounds for an estimate where nothing can be counted. `.cache/durations.json` keeps the
last few runs of each command. A command is identified by its options, this machine, torch's version
and this package's files. How long compilation takes depends on the compiler's cache. The cache is
cold when it is empty, and warm when an earlier run of this command has used the same one: then it
holds the command's graphs. Otherwise its state is unknown, and no duration is expected.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from gallery_lib.console.phases import COMPILING, EVALUATION, TRAINING
from gallery_lib.errors import InputError
from gallery_lib.system import hardware, paths
from gallery_lib.system.json_files import read_json, write_json
from gallery_lib.system.version import library_version

_RUNS_KEPT = 5
_COMMANDS_KEPT = 200
_RUNS_LOOKED_AT = 3
_ALIKE = 1.5
"""Durations that differ by more than this factor are no grounds for an estimate."""
_EXPECTED = (COMPILING, TRAINING, EVALUATION)
"""Phases that take as long as last time. The others depend on what is in memory or made already."""


@dataclass(frozen=True)
class _Run:
    """Durations of one run, by phase, and the compiler cache that it used."""

    state: str | None  # of the compiler's cache: cold, warm, or None (unknown)
    compiler_cache: str
    seconds: dict[str, float]  # by phase


def _file() -> Path:
    return paths.cache_dir() / "durations.json"


def _read() -> dict[str, list[_Run]]:
    try:
        return read_json(_file(), dict[str, list[_Run]], again="")
    except (OSError, InputError):  # the file serves estimates only
        return {}


@functools.cache
def _package_stamp() -> str:
    """Return a digest that changes whenever a file of this package does."""
    package = Path(__file__).resolve().parents[1]
    stats = [
        (str(path.relative_to(package)), path.stat()) for path in sorted(package.rglob("*.py"))
    ]
    return hashlib.sha256(
        repr([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]).encode()
    ).hexdigest()


class Durations:
    """Durations that earlier runs of a command lead to expect, and the file that keeps them."""

    def __init__(self, command: Mapping[str, Any], compiler_cache: Path) -> None:
        """Read the durations of earlier runs of `command`, and look at the compiler's cache."""
        facts = [
            dict(command),
            hardware.processor(),
            hardware.cores(),
            library_version("torch") or "none",
            _package_stamp(),
        ]
        self._key = hashlib.sha256(
            json.dumps(facts, sort_keys=True, default=str).encode()
        ).hexdigest()[:24]
        self._cache = str(compiler_cache)
        self._runs = _read().get(self._key, [])
        cold = not compiler_cache.is_dir() or not any(compiler_cache.iterdir())
        warm = any(run.compiler_cache == self._cache for run in self._runs)
        self._state = "cold" if cold else "warm" if warm else None

    def _alike(self) -> list[_Run]:
        """Return the last runs that found the compiler's cache in the same state."""
        return [run for run in self._runs if self._state and run.state == self._state][
            -_RUNS_LOOKED_AT:
        ]

    def expected(self, label: str) -> float | None:
        """Return the seconds that a phase is expected to take; None without grounds."""
        if not label.startswith(_EXPECTED):
            return None
        runs = self._alike() if label.startswith(COMPILING) else self._runs[-_RUNS_LOOKED_AT:]
        seconds = [run.seconds[label] for run in runs if label in run.seconds]
        if not seconds or max(seconds) > _ALIKE * min(seconds):
            return None
        return median(seconds)

    def graphs(self) -> int | None:
        """Return how many graphs the runs with the same cache state have compiled.

        Return None when there were none, or when the runs differ.
        """
        counts = {
            sum(label.startswith(COMPILING) for label in run.seconds) for run in self._alike()
        }
        return counts.pop() or None if len(counts) == 1 else None

    def keep(self, seconds: Mapping[str, float]) -> None:
        """Store the seconds by phase of a run that went well."""
        run = _Run(
            self._state, self._cache, {name: round(took, 2) for name, took in seconds.items()}
        )
        everything = _read()
        runs = [*everything.pop(self._key, []), run][-_RUNS_KEPT:]
        everything[self._key] = runs  # the newest last
        for key in list(everything)[:-_COMMANDS_KEPT]:
            del everything[key]
        # A cache that cannot be written costs nothing but estimates.
        with contextlib.suppress(OSError):
            _file().parent.mkdir(parents=True, exist_ok=True)
            write_json(
                _file(),
                {
                    key: [dataclasses.asdict(run) for run in runs]
                    for key, runs in everything.items()
                },
            )
