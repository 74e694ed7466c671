"""Published measurements: the folders of `results/`, read and checked.

A folder holds the raw files of one machine, JSON as the benchmarks wrote them, and `machine.yaml`.
That file has what no benchmark writes: a name, what the machine is for, and, where a raw file needs
it, what its run was for. Names of files begin with what they answer and may end with the number of
a run: `bench-small-2.json`, `startup.json`.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gallery_lib.errors import InputError
from gallery_lib.measure.bench.result import Bench, read_bench
from gallery_lib.system import hardware

ABOUT = "machine.yaml"
PAGE = "README.md"
"""Name of a folder's page, which pages.py makes."""


@dataclass(frozen=True)
class File:
    """One raw file, with the conditions of its figures."""

    path: Path
    content: dict[str, Any]

    @property
    def name(self) -> str:
        """Return the file's name without its ending."""
        return self.path.stem

    @property
    def series(self) -> str:
        """Return the name without the number of the run, which the runs of one question share."""
        return re.sub(r"-\d+$", "", self.name)

    @property
    def run(self) -> int:
        """Return the number of the run; 1 where the name has none."""
        number = re.search(r"-(\d+)$", self.name)
        return int(number[1]) if number else 1

    @functools.cached_property
    def bench(self) -> Bench | None:
        """Return the file as a bench if `gallery bench` wrote it, else None."""
        return read_bench(self.path) if self.content.get("kind") in ("bench", "waterfall") else None

    @property
    def dates(self) -> list[str]:
        """Return the days on which the figures were measured."""
        return (
            sorted({outcome.date[:10] for outcome in self.bench.tasks.values()})
            if self.bench
            else [self.content["date"]]
        )

    @property
    def command(self) -> str:
        """Return the command that was run, without the option for the file of its figures."""
        return re.sub(r" --out[ =]\S+", "", self.content["command"])

    @property
    def environment(self) -> dict[str, Any]:
        """Return hardware and versions."""
        return dict(self.content["environment"])

    @property
    def hardware(self) -> str:
        """Return the hardware in words, without versions."""
        return hardware.describe(self.environment).partition(";")[0]

    @property
    def processor(self) -> str:
        """Return device, CPU and instruction sets.

        The number of cores is left out: a host of a lab is given a part of them.
        """
        environment = self.environment
        return f"{environment['device']}, {environment['cpu']} ({', '.join(environment['isa'])})"


@dataclass(frozen=True)
class Machine:
    """One folder of `results/`: its words and its files."""

    folder: Path
    name: str
    about: str
    notes: dict[str, str]  # by name of a file: what its run was for
    files: tuple[File, ...]

    @property
    def hardware(self) -> str:
        """Return the hardware that the files name, with the greatest number of cores."""
        return max(self.files, key=lambda file: int(file.environment["cores"])).hardware

    @property
    def link(self) -> str:
        """Return a link from the page across machines to the machine's page, as Markdown."""
        return f"[{self.name}]({self.folder.name}/{PAGE})"


def days(files: Iterable[File]) -> str:
    """Return the day on which the files were measured, or the first and the last day."""
    ordered = sorted(date for file in files for date in file.dates)
    first, last = ordered[0], ordered[-1]
    return first if first == last else f"{first} to {last}"


def _words(path: Path) -> tuple[str, str, dict[str, str]]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        return (
            str(values["name"]),
            str(values["about"]),
            {str(key): str(text) for key, text in (values.get("files") or {}).items()},
        )
    except FileNotFoundError:
        raise InputError(
            f"{path} is missing. Write it: `name:` and `about:` of the machine.",
            parameter=str(path),
        ) from None
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} needs `name:` and `about:`, "
            f"and may have `files:` ({type(error).__name__}: {error}).",
            parameter=str(path),
        ) from None


def _file(path: Path) -> File:
    try:
        file = File(path, json.loads(path.read_text(encoding="utf-8")))
        _ = file.dates, file.command, file.hardware
        return file
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} is no file of results ({type(error).__name__}: {error}). "
            "Measure again, or remove it.",
            parameter=str(path),
        ) from None


def read_machine(folder: Path) -> Machine:
    """Read one machine's folder.

    Raises:
        InputError: for what cannot be read, and for files of different hardware.
    """
    name, about, notes = _words(folder / ABOUT)
    files = tuple(_file(path) for path in sorted(folder.glob("*.json")))
    if not files:
        raise InputError(
            f"{folder} holds no figures. Remove the folder, or measure something.",
            parameter=str(folder),
        )
    for file in files:
        if file.processor != files[0].processor:
            other = f"{files[0].path.name} of {files[0].processor}"
            raise InputError(
                f"{file.path} is of {file.processor}, and {other}. Use a folder for each.",
                parameter=str(file.path),
            )
    if unknown := sorted(set(notes) - {file.name for file in files}):
        raise InputError(
            f"{folder / ABOUT} has words for files that are not there: "
            f"{', '.join(unknown)}. Remove them.",
            parameter=str(folder / ABOUT),
        )
    return Machine(folder, name, about, notes, files)


def read_machines(results: Path) -> list[Machine]:
    """Read every machine's folder; the machine measured last comes first."""
    machines = [read_machine(path) for path in sorted(results.iterdir()) if path.is_dir()]
    return sorted(
        machines,
        key=lambda machine: max(date for file in machine.files for date in file.dates),
        reverse=True,
    )
