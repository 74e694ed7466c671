"""Notebook file as plain data, and the parameters that its cell tagged `parameters` declares.

papermill takes any name and any type: a misspelt name is a warning in its log, and `batch_size=abc`
is run. Where the cell declares one of the gallery's options classes, that class checks the values,
ranges included. In any other notebook, the names, annotations and defaults of the cell are used.

This module needs the standard library alone: `prepare.sh --run` uses it before there is an
environment. nbformat would take two seconds to import, and a wrong parameter must be refused
sooner than that.
"""

from __future__ import annotations

import ast
import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gallery_lib.config import (
    CommunicationNotebookConfig,
    DataParallelNotebookConfig,
    NotebookConfig,
    PerformanceDataConfig,
    YourModelConfig,
)
from gallery_lib.config.options import check_value, option
from gallery_lib.errors import InputError, did_you_mean

_OF_THE_GALLERY = (
    NotebookConfig,
    YourModelConfig,
    DataParallelNotebookConfig,
    CommunicationNotebookConfig,
    PerformanceDataConfig,
)
_TYPES = {"int": int, "float": float, "bool": bool, "str": str}


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
    """The cells of a notebook, and the Jupyter kernel that it asks for."""

    cells: list[Cell]
    kernel: str

    @property
    def code(self) -> list[Cell]:
        """Return the code cells that are not blank."""
        return [cell for cell in self.cells if cell.is_code and cell.source.strip()]

    @property
    def parameters_source(self) -> str | None:
        """Return the source of the cell tagged `parameters`; None without one."""
        cells = [cell for cell in self.cells if cell.is_code and "parameters" in cell.tags]
        return cells[0].source if cells else None


@dataclass(frozen=True)
class NoParameters:
    """Empty options class for a notebook without a parameters cell."""


def read_notebook(path: Path) -> NotebookFile:
    """Return the notebook at `path`.

    Raises:
        InputError: for a missing or damaged notebook, and for a format older than 4.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values["nbformat"] != 4:
            raise InputError(
                f"{path} has notebook format {values['nbformat']}; open and save it in JupyterLab "
                "to bring it to 4.",
                parameter="nbformat",
            )
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
        return NotebookFile(cells, values["metadata"].get("kernelspec", {}).get("name", "python3"))
    except FileNotFoundError:
        raise InputError(f"the notebook {path} does not exist.", parameter=str(path)) from None
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} is no notebook that can be read ({type(error).__name__}: {error}).",
            parameter=str(path),
        ) from None


def _declared(statement: ast.stmt) -> tuple[str, Any, Any] | None:
    """Return (name, type, field) of an assignment, as `make_dataclass` takes it, else None."""
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        name, annotation = ast.unparse(statement.target), ast.unparse(statement.annotation)
        default = ast.literal_eval(statement.value)
    elif isinstance(statement, ast.Assign):
        name, annotation = ast.unparse(statement.targets[0]), ""
        default = ast.literal_eval(statement.value)
    else:
        return None
    kind = _TYPES.get(annotation.partition("|")[0].strip(), type(default))
    if kind not in _TYPES.values():
        raise ValueError(f"the type of `{name}` is not known; annotate it with one of {[*_TYPES]}")
    return name, kind if default is not None else kind | None, option(default)


def options_class(notebook: NotebookFile, path: Path) -> type:
    """Return the options class that the notebook's parameters cell declares.

    Raises:
        InputError: for a cell that cannot be read; the message names `path`.
    """
    if notebook.parameters_source is None:
        return NoParameters
    try:
        declared = [*filter(None, map(_declared, ast.parse(notebook.parameters_source).body))]
    except (SyntaxError, ValueError) as error:
        raise InputError(
            f"{path}: its parameters cell is not plain assignments of literals ({error}).",
            parameter=str(path),
        ) from None
    for known in _OF_THE_GALLERY:
        if [f.name for f in dataclasses.fields(known)] == [name for name, _, _ in declared]:
            return known
    return dataclasses.make_dataclass("Parameters", declared, frozen=True)


def fitting(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of `values` that the notebook has, converted to the types that it expects.

    Raises:
        InputError: for a value that does not fit.
    """
    names = {f.name for f in dataclasses.fields(cls)}
    return {name: check_value(cls, name, value) for name, value in values.items() if name in names}


def check_names(given: Iterable[str], classes: Iterable[type]) -> None:
    """Raise InputError for a parameter that none of the notebooks has."""
    known = list(dict.fromkeys(f.name for cls in classes for f in dataclasses.fields(cls)))
    for name in given:
        if name not in known:
            there = f"Known: {', '.join(known)}." if known else "There are no parameters."
            raise InputError(
                f"unknown parameter `{name}`.{did_you_mean(name, known)} {there}", parameter=name
            )


def check(notebook: Path, given: Mapping[str, Any]) -> None:
    """Raise InputError for a parameter that the notebook at that path does not take."""
    cls = options_class(read_notebook(notebook), notebook)
    check_names(given, [cls])
    fitting(cls, given)
