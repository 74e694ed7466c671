"""Notebook file as plain data, and the parameters that it takes.

papermill takes any name and any type: a misspelt name is a warning in its log, and `batch_size=abc`
is run. A notebook of the gallery names its options class in its metadata, and that class checks
names, types and ranges. Of any other notebook, the names in its cell tagged `parameters` are known,
and values are Python's literals.

This module needs the standard library alone: `prepare.sh --run` uses it before there is an
environment.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gallery_lib import config
from gallery_lib.config.options import check_value
from gallery_lib.errors import InputError, did_you_mean


@dataclass(frozen=True)
class Cell:
    """One cell; only code cells have been executed and have outputs."""

    is_code: bool
    source: str
    tags: tuple[str, ...]
    execution_count: int | None
    outputs: list[dict[str, Any]]

    @property
    def error(self) -> tuple[str, str] | None:
        """Return name and value of the first exception in the outputs; None without one."""
        shown = [output for output in self.outputs if output["output_type"] == "error"]
        return (shown[0]["ename"], shown[0]["evalue"]) if shown else None


@dataclass(frozen=True)
class NotebookFile:
    """The cells of a notebook, and the name of its options class."""

    cells: list[Cell]
    options: str | None

    @property
    def code(self) -> list[Cell]:
        """Return the code cells that are not blank."""
        return [cell for cell in self.cells if cell.is_code and cell.source.strip()]

    @property
    def parameters_source(self) -> str:
        """Return the source of the cell tagged `parameters`; '' without one."""
        cells = (cell for cell in self.cells if cell.is_code and "parameters" in cell.tags)
        return next((cell.source for cell in cells), "")

    @property
    def parameters(self) -> list[str]:
        """Return the names of the notebook's parameters."""
        if self.options:
            return [f.name for f in dataclasses.fields(getattr(config, self.options))]
        return re.findall(r"^(\w+)[^=\n]*=(?!=)", self.parameters_source, re.MULTILINE)

    def fitting(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of `values` that the notebook has a parameter for, converted.

        Raises:
            InputError: for a value that does not fit.
        """
        cls = getattr(config, self.options) if self.options else None
        return {
            name: check_value(cls, name, value) if cls else _literal(value)
            for name, value in values.items()
            if name in self.parameters
        }


def _literal(value: Any) -> Any:
    """Return the value that a text is in Python, or the text where it is none."""
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value


def read_notebook(path: Path) -> NotebookFile:
    """Return the notebook at `path`.

    Raises:
        InputError: for a missing or damaged notebook, and for another format than 4.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        cells = [
            Cell(
                is_code=cell["cell_type"] == "code",
                source="".join(cell["source"]),
                tags=tuple(cell["metadata"].get("tags", ())),
                execution_count=cell.get("execution_count"),
                outputs=cell.get("outputs", []),
            )
            for cell in values["cells"]
        ]
        metadata = values["metadata"]
        return NotebookFile(cells, metadata.get("gallery", {}).get("options"))
    except FileNotFoundError:
        raise InputError(f"the notebook {path} does not exist.", parameter=str(path)) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} is no notebook of format 4 ({type(error).__name__}: {error}).",
            parameter=str(path),
        ) from None


def check_names(given: Iterable[str], notebooks: Iterable[NotebookFile]) -> None:
    """Raise InputError for a parameter that none of the notebooks has."""
    known = list(dict.fromkeys(name for notebook in notebooks for name in notebook.parameters))
    for name in given:
        if name not in known:
            there = f"Known: {', '.join(known)}." if known else "There are no parameters."
            raise InputError(
                f"unknown parameter `{name}`.{did_you_mean(name, known)} {there}", parameter=name
            )


def check(path: Path, given: Mapping[str, Any]) -> None:
    """Raise InputError for a parameter that the notebook at that path does not take."""
    notebook = read_notebook(path)
    check_names(given, [notebook])
    notebook.fitting(given)
