"""Results of a sweep, timelines × numbers of hosts: DDP's own strategy beside the tuner's choice.

`benchmarks/network.py sweep` measures them. The table (CSV) has a line for each timeline on each
number of hosts, and the conditions (JSON) are beside it. In the folder of the sweep they are
`sweep.csv` and `settings.json`. Published, they are `<machine>/sweep.csv` and `sweep.json`. What
was not measured has no line. Needs no torch.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gallery_lib.errors import InputError
from gallery_lib.measure.replay.timeline import RECORDED, Timeline
from gallery_lib.stats import Ratio
from gallery_lib.system.files import atomic_write

HOSTS = (1, 2, 4, 8)
TABLE, SETTINGS = "sweep.csv", "settings.json"


@dataclass(frozen=True)
class Cell:
    """One timeline on one number of hosts: a line of the table, whose columns are these fields."""

    model: str
    hosts: int
    ranks: int  # processes on each host
    rate: str  # of each host's link
    stretch: float
    batch_size: int  # samples a step of one process
    input_sizes: str  # image size or sequence length; may be ''
    precision: str
    device: str  # the recorded device
    timeline: str  # `recorded`, or from what it was derived, and how
    replayed_on: str  # the machine that waited and sent, with its versions
    gradient_bytes: int
    step_seconds_alone: float  # of the timeline: one process, without communication
    ddp_step_seconds: float  # p50
    # The strategy that the tuner chose; DDP's own where no other was certainly faster.
    chosen: str
    chosen_step_seconds: float  # p50
    acc_ratio: float  # DDP's step time over that of the chosen strategy, in turns
    acc_ratio_low: float
    acc_ratio_high: float
    # DDP's own step time on one host over that on these; None: not measured on one host.
    ddp_acc: float | None

    @staticmethod
    def of(timeline: Timeline, **measured: Any) -> Cell:
        """Return a cell with the facts of the timeline; `measured` gives the other fields."""
        return Cell(
            model=timeline.task,
            batch_size=timeline.batch_size,
            input_sizes=timeline.input_sizes,
            precision=timeline.precision,
            device=timeline.device,
            timeline=timeline.origin,
            gradient_bytes=timeline.gradient_bytes,
            step_seconds_alone=timeline.step_seconds,
            **measured,
        )

    @property
    def recording(self) -> tuple[Any, ...]:
        """Return what tells its timeline from others."""
        run = (self.model, self.batch_size, self.input_sizes, self.precision, self.device)
        return (*run, self.timeline, self.step_seconds_alone)

    @property
    def is_recorded(self) -> bool:
        """Return whether the times are those of the device; otherwise the timeline was derived."""
        return self.timeline == RECORDED

    @property
    def ratio(self) -> Ratio:
        """Return acc_ratio with its interval."""
        return Ratio(self.acc_ratio, self.acc_ratio_low, self.acc_ratio_high)

    @property
    def ddp_rate(self) -> float:
        """Return the samples per second of all processes with DDP's own strategy."""
        return self.hosts * self.ranks * self.batch_size / self.ddp_step_seconds

    @property
    def chosen_rate(self) -> float:
        """Return the samples per second of all processes with the chosen strategy."""
        return self.hosts * self.ranks * self.batch_size / self.chosen_step_seconds


@dataclass(frozen=True)
class Sweep:
    """A table that has been read, and its conditions."""

    path: Path
    cells: tuple[Cell, ...]
    date: str
    command: str
    what_it_is: str
    ranks: int
    rate: str
    wires: str  # formats that the tuner was offered
    rounds: int
    block_steps: int
    # Why a model was not measured on so many hosts, as far as that is known.
    reasons: Mapping[tuple[str, int], str]

    @property
    def models(self) -> list[str]:
        """Return the models with a measurement, in the order of the table."""
        return list(dict.fromkeys(cell.model for cell in self.cells))

    @property
    def hosts(self) -> list[int]:
        """Return the numbers of hosts of a figure: the default ones, and those measured."""
        return sorted({*HOSTS, *(cell.hosts for cell in self.cells)})

    @property
    def stretches(self) -> str:
        """Return by how much time was stretched: `8`, or `8 (hosts: 1, 2); 32 (hosts: 8)`.

        More hosts on the same cores need more.
        """
        cells = sorted(self.cells, key=lambda cell: cell.stretch)
        return _by_hosts((f"{cell.stretch:g}", cell.hosts) for cell in cells)

    @property
    def machines(self) -> str:
        """Return the machines that replayed, with their numbers of hosts where they are several."""
        return _by_hosts((cell.replayed_on, cell.hosts) for cell in self.cells)

    def recordings(self, model: str) -> list[tuple[Cell, ...]]:
        """Return the measurements of each timeline of a model, by number of hosts."""
        by_recording: dict[tuple[Any, ...], list[Cell]] = {}
        for cell in sorted(self.cells, key=lambda cell: cell.hosts):
            if cell.model == model:
                by_recording.setdefault(cell.recording, []).append(cell)
        return list(map(tuple, by_recording.values()))

    def missing(self, models: Iterable[str]) -> dict[tuple[str, int], str]:
        """Return what was not measured of these models, and why, as far as that is known."""
        measured = {(cell.model, cell.hosts) for cell in self.cells}
        places = ((model, hosts) for model in models for hosts in self.hosts)
        return {
            place: self.reasons.get(place, "no reason recorded")
            for place in places
            if place not in measured
        }


def _by_hosts(values: Iterable[tuple[str, int]]) -> str:
    """Return the value that all share, or each value with the numbers of hosts that have it."""
    hosts: dict[str, set[int]] = {}
    for value, number in values:
        hosts.setdefault(value, set()).add(number)
    if len(hosts) == 1:
        return next(iter(hosts))
    return "; ".join(
        f"{value} (hosts: {', '.join(map(str, sorted(numbers)))})"
        for value, numbers in hosts.items()
    )


COLUMNS = tuple(f.name for f in dataclasses.fields(Cell))


def write_sweep(path: Path, cells: Iterable[Cell]) -> None:
    """Write the table atomically, so that it is never there by half."""
    with atomic_write(path, newline="") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(dataclasses.asdict(cell) for cell in cells)


def _value(column: str, kind: Any, text: str | None) -> Any:
    """Return the value of a column; ValueError for a line that ends before it, or no number."""
    if text is None:
        raise ValueError(f"a line ends before {column}")
    if kind is str:
        return text
    if not text and type(None) in typing.get_args(kind):
        return None
    value = int(text) if kind is int else float(text)
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{column}={text!r} is not above 0")
    return value


def _read_cells(path: Path) -> tuple[Cell, ...]:
    kinds = typing.get_type_hints(Cell)
    with path.open(newline="", encoding="utf-8") as file:
        table = csv.DictReader(file, strict=True)
        if tuple(table.fieldnames or ()) != COLUMNS:
            raise ValueError(f"its columns are not {', '.join(COLUMNS)}")
        return tuple(
            Cell(**{column: _value(column, kinds[column], text) for column, text in row.items()})
            for row in table
        )


def read_sweep(path: Path) -> Sweep:
    """Return a table with the conditions beside it; InputError for what is missing or damaged."""
    beside = path.with_suffix(".json")
    settings = beside if beside.exists() else path.with_name(SETTINGS)
    try:
        cells = _read_cells(path)
        content = json.loads(settings.read_text(encoding="utf-8"))
        about = content["sweep"]
        return Sweep(
            path=path,
            cells=cells,
            date=str(content["date"]),
            command=str(content["command"]),
            what_it_is=str(content["what_it_is"]),
            ranks=int(about["ranks"]),
            rate=str(about["rate"]),
            wires=str(about["replay"]["wires"]),
            rounds=int(about["replay"]["rounds"]),
            block_steps=int(about["replay"]["block_steps"]),
            reasons={
                (place["model"], int(place["hosts"])): str(place["reason"])
                for place in content["not_measured"]
            },
        )
    except (OSError, LookupError, TypeError, ValueError, csv.Error) as error:
        raise InputError(
            f"{path}, with its conditions in {settings.name} beside it, is no sweep "
            f"({type(error).__name__}: {error}). Begin the sweep again with the same folder "
            "(benchmarks/network.py sweep … --out FOLDER): it writes both anew.",
            parameter=str(path),
        ) from None


def find_sweep(place: Path) -> Sweep | None:
    """Return the sweep at `place`, or None if none is there yet.

    `place` is a table, the folder of a sweep, or a folder above machines' folders, of which the
    newest sweep is returned.

    Raises:
        InputError: for a place that does not exist, and for what cannot be read.
    """
    if place.is_file():
        return read_sweep(place)
    if not place.is_dir():
        raise InputError(
            f"sweep={place} does not exist. Name a table of benchmarks/network.py sweep, or the "
            "folder that it was written to.",
            parameter="sweep",
        )
    tables = [place / TABLE] if (place / TABLE).exists() else sorted(place.glob(f"*/{TABLE}"))
    sweeps = map(read_sweep, tables)
    return max(sweeps, key=lambda sweep: (sweep.date, str(sweep.path)), default=None)
