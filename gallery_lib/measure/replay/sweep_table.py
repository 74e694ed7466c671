"""Table of a sweep as a file: write it, read it back with its conditions, and check both.

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
from gallery_lib.measure.replay.sweep import Cell, Recording, Sweep
from gallery_lib.system.files import atomic_write

TABLE, SETTINGS = "sweep.csv", "settings.json"
COLUMNS = tuple(f.name for f in dataclasses.fields(Cell))
_AGAIN = (
    "Begin the sweep again with the same folder (benchmarks/ddp_lab.py sweep … --out FOLDER): "
    "it writes the table anew."
)


def write_sweep(path: Path, cells: Iterable[Cell]) -> None:
    """Write the table atomically, so that it is never there by half."""
    with atomic_write(path, newline="") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(dataclasses.asdict(cell) for cell in cells)


def _value(column: str, kind: Any, text: str) -> Any:
    """Return the value of a column.

    Raises:
        ValueError: with what is wrong.
    """
    if kind is str:
        if not text.isprintable() or (not text and column != "input_sizes"):
            raise ValueError(f"{column}={text!r} is no text")
        return text
    if not text and type(None) in typing.get_args(kind):
        return None
    try:
        number = int(text) if kind is int else float(text)
    except ValueError:
        raise ValueError(
            f"{column}={text!r} is no {'whole ' if kind is int else ''}number"
        ) from None
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{column}={text!r} is not above 0")
    return number


def _cell(values: dict[str | None, Any]) -> Cell:
    """Return the cell of a line.

    Raises:
        ValueError: with what is wrong.
    """
    if None in values or None in values.values():
        raise ValueError(
            f"it has {'more' if None in values else 'fewer'} values than the {len(COLUMNS)} columns"
        )
    kinds = typing.get_type_hints(Cell)
    cell = Cell(**{column: _value(column, kinds[column], values[column]) for column in COLUMNS})
    if not cell.acc_ratio_low <= cell.acc_ratio <= cell.acc_ratio_high:
        raise ValueError(
            f"acc_ratio={cell.acc_ratio} is not within its interval, {cell.acc_ratio_low} to "
            f"{cell.acc_ratio_high}"
        )
    return cell


def _read_cells(path: Path) -> tuple[Cell, ...]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            table = csv.DictReader(file, strict=True)
            if tuple(table.fieldnames or ()) != COLUMNS:
                raise InputError(
                    f"{path}, line 1: its columns are not those of a sweep, {', '.join(COLUMNS)}. "
                    f"{_AGAIN}",
                    parameter=str(path),
                )
            cells: dict[tuple[Recording, int], Cell] = {}
            for values in table:
                cell = _cell(values)
                if (cell.recording, cell.hosts) in cells:
                    raise ValueError(f"{cell.model} on {cell.hosts} hosts is there twice")
                cells[cell.recording, cell.hosts] = cell
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}).", parameter=str(path)
        ) from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is no text file ({error.reason}). {_AGAIN}", parameter=str(path)
        ) from None
    except csv.Error as error:
        raise InputError(
            f"{path}, line {table.reader.line_num}: {error}. {_AGAIN}", parameter=str(path)
        ) from None
    except InputError:
        raise
    except ValueError as error:
        raise InputError(
            f"{path}, line {table.line_num}: {error}. {_AGAIN}", parameter=str(path)
        ) from None
    return tuple(cells.values())


def _settings_beside(table: Path) -> Path:
    """Return the file of the table's conditions.

    Raises:
        InputError: where it is missing.
    """
    beside = table.with_suffix(".json")
    settings = beside if beside.exists() else table.with_name(SETTINGS)
    if not settings.exists():
        raise InputError(
            f"{table} has no conditions beside it ({beside.name} or {SETTINGS}): copy them with "
            "it, from the sweep's folder.",
            parameter=str(table),
        )
    return settings


def _check_same_sweep(cell: Cell, conditions: dict[str, Any], table: Path, settings: Path) -> None:
    """Raise InputError where a cell was measured under other conditions than those of the file."""
    for name, expected in conditions.items():
        if getattr(cell, name) != expected:
            value = f"{cell.model} on {cell.hosts} hosts has {name}={getattr(cell, name)}"
            raise InputError(
                f"{table}: {value}, and {settings.name} beside it {expected}: they are not of "
                "the same sweep.",
                parameter=name,
            )


def read_sweep(path: Path) -> Sweep:
    """Return a table with the conditions beside it.

    Raises:
        InputError: with file and line, for what is missing, damaged or does not fit.
    """
    cells = _read_cells(path)
    settings = _settings_beside(path)
    try:
        content = json.loads(settings.read_text(encoding="utf-8"))
        about = content["sweep"]
        stretches = {int(hosts): float(stretch) for hosts, stretch in content["stretches"].items()}
        sweep = Sweep(
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
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{settings} does not hold the conditions of a sweep ({type(error).__name__}: "
            f"{error}). {_AGAIN}",
            parameter=str(settings),
        ) from None
    for cell in cells:
        stretch = stretches.get(cell.hosts)
        conditions = {"ranks": sweep.ranks, "rate": sweep.rate, "stretch": stretch}
        _check_same_sweep(cell, conditions, path, settings)
    return sweep


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
            f"sweep={place} does not exist. Name a table of benchmarks/ddp_lab.py sweep, or the "
            "folder that it was written to.",
            parameter="sweep",
        )
    tables = [place / TABLE] if (place / TABLE).exists() else sorted(place.glob(f"*/{TABLE}"))
    return max(
        map(read_sweep, tables), key=lambda sweep: (sweep.date, str(sweep.path)), default=None
    )
