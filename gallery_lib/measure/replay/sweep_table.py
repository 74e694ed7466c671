"""Table of a sweep as a file: write it, and read it back with its conditions.

The table (CSV) has a line for each timeline on each number of hosts, and the conditions (JSON) are
beside it. In the folder of the sweep they are `sweep.csv` and `settings.json`. Published, they are
`<machine>/sweep.csv` and `sweep.json`. What was not measured has no line. Needs no torch.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gallery_lib.errors import InputError
from gallery_lib.measure.replay.sweep import Cell, Sweep
from gallery_lib.system.files import atomic_write

TABLE, SETTINGS = "sweep.csv", "settings.json"
COLUMNS = tuple(f.name for f in dataclasses.fields(Cell))


def write_sweep(path: Path, cells: Iterable[Cell]) -> None:
    """Write the table atomically, so that it is never there by half."""
    with atomic_write(path, newline="") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(dataclasses.asdict(cell) for cell in cells)


def _value(column: str, kind: Any, text: str | None) -> Any:
    """Return the value of a column.

    Raises:
        ValueError: for a line that ends before it, no number, and one that is not above 0.
    """
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
    """Return a table with the conditions beside it.

    Raises:
        InputError: for what is missing or damaged.
    """
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
    return max(
        map(read_sweep, tables), key=lambda sweep: (sweep.date, str(sweep.path)), default=None
    )
