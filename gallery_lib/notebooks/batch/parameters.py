"""Validation of notebook parameters, without starting a kernel and without torch.

papermill takes any name and any type: a misspelt name is a warning in its log, and `batch_size=abc`
is run. The cell tagged `parameters` says which parameters exist. Where the cell declares one of the
gallery's options classes, that class validates the values, ranges included. In any other notebook,
the names, annotations and defaults of the cell itself are used.

    python -m gallery_lib.notebooks.batch.parameters NOTEBOOK -p NAME VALUE …

This module needs the standard library alone: `prepare.sh --run` uses it before there is an
environment.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import sys
from collections.abc import Mapping, Sequence
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
from gallery_lib.console.exit_code import exit_code_of
from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.notebooks.batch.notebook_file import NotebookFile, read_notebook

_OF_THE_GALLERY = (
    NotebookConfig,
    YourModelConfig,
    DataParallelNotebookConfig,
    CommunicationNotebookConfig,
    PerformanceDataConfig,
)
_TYPES = {"int": int, "float": float, "bool": bool, "str": str}


@dataclasses.dataclass(frozen=True)
class NoParameters:
    """Empty options class for a notebook without a parameters cell."""


def _declarations(source: str, path: Path) -> list[tuple[str, Any, dataclasses.Field[Any]]]:
    """Return (name, type, field) of every assignment in a parameters cell.

    This is the form that `make_dataclass` takes.

    Raises:
        InputError: for a parameter of unknown type.
    """
    declarations = []
    for statement in ast.parse(source).body:
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and statement.value is not None
        ):
            name, annotation, value = (
                statement.target.id,
                ast.unparse(statement.annotation),
                statement.value,
            )
        elif (
            isinstance(statement, ast.Assign)
            and len(statement.targets) == 1
            and isinstance(statement.targets[0], ast.Name)
        ):
            name, annotation, value = statement.targets[0].id, "", statement.value
        else:
            continue
        default = ast.literal_eval(value)
        kind = _TYPES.get(annotation.partition("|")[0].strip(), type(default))
        if kind not in _TYPES.values():
            raise InputError(
                f"{path}: the type of its parameter `{name}` is not known; annotate it with one of "
                f"{', '.join(_TYPES)}.",
                parameter=name,
            )
        declarations.append((name, kind if default is not None else kind | None, option(default)))
    return declarations


def options_class(notebook: NotebookFile, path: Path) -> type:
    """Return the options class that the notebook's parameters cell declares.

    Raises:
        InputError: for a cell that cannot be read; the message names `path`.
    """
    source = notebook.parameters_source
    if source is None:
        return NoParameters
    try:
        declared = _declarations(source, path)
    except (SyntaxError, ValueError) as error:
        raise InputError(
            f"{path}: its parameters cell is not plain assignments of literals ({error}).",
            parameter=str(path),
        ) from None
    for known in _OF_THE_GALLERY:
        if [f.name for f in dataclasses.fields(known)] == [name for name, _, _ in declared]:
            return known
    return dataclasses.make_dataclass("Parameters", declared, frozen=True)


def names(cls: type) -> list[str]:
    """Return the parameter names of an options class."""
    return [f.name for f in dataclasses.fields(cls)]


def check_names(given: Mapping[str, Any], classes: Sequence[type]) -> None:
    """Raise InputError for a parameter that none of the notebooks has."""
    known = list(dict.fromkeys(name for cls in classes for name in names(cls)))
    for name in given:
        if name not in known:
            there = (
                f" Known: {', '.join(known)}." if known else " These notebooks have no parameters."
            )
            raise InputError(
                f"unknown parameter `{name}`.{did_you_mean(name, known)}{there}", parameter=name
            )


def fitting(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of `values` that the notebook has, converted to the types that it expects.

    Raises:
        InputError: for a value that does not fit.
    """
    return {
        name: check_value(cls, name, value) for name, value in values.items() if name in names(cls)
    }


def check(notebook: Path, given: Mapping[str, Any]) -> None:
    """Raise InputError for a parameter that the notebook at that path does not take."""
    cls = options_class(read_notebook(notebook), notebook)
    check_names(given, [cls])
    fitting(cls, given)


def main() -> None:
    """Check the parameters on the command line.

    Raises:
        InputError: for a parameter that the notebook does not take.
    """
    parser = argparse.ArgumentParser(description="Check parameters of a notebook.")
    parser.add_argument("notebook", type=Path)
    parser.add_argument(
        "-p", nargs=2, action="append", default=[], dest="given", metavar=("NAME", "VALUE")
    )
    arguments = parser.parse_args()
    check(arguments.notebook, dict(arguments.given))


if __name__ == "__main__":
    sys.exit(exit_code_of(main, error_prefix="error", interrupted="interrupted"))
