"""The reader's own functions from a notebook cell, as a task file for the training processes."""

from __future__ import annotations

import ast
import hashlib
import linecache
import re
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gallery_lib.console.user_errors import CELL_FILE
from gallery_lib.errors import InputError
from gallery_lib.system import paths

FUNCTIONS = ("build_model", "loss", "make_batch")


def _names_bound(source: str) -> Iterator[str]:
    """Yield the names that the top level of the source defines, assigns or imports."""
    for statement in ast.parse(source).body:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            yield statement.name
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name for alias in statement.names)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def source_of(build_model: Any) -> str:
    """Return the source of the cell that defines `build_model`.

    Raises:
        InputError: if `build_model` is no function of the notebook, and if the cell does not define
            all of FUNCTIONS.
    """
    if not isinstance(build_model, types.FunctionType):
        kind = (
            f"the class {build_model.__name__}"
            if isinstance(build_model, type)
            else f"a {type(build_model).__name__}"
        )
        raise InputError(
            f"build_model must be a function that returns the model, and is {kind}. Write "
            "`def build_model(): return …`.",
            parameter="build_model",
        )
    if build_model.__module__ != "__main__":
        origin = f"{build_model.__module__}.{build_model.__name__}"
        raise InputError(
            f"build_model is {origin}, of a module. Define one in the cell: "
            f"`def build_model(): return {origin}()`.",
            parameter="build_model",
        )
    source = "".join(linecache.getlines(build_model.__code__.co_filename))
    bound = set(_names_bound(source))
    if missing := [name for name in FUNCTIONS if name not in bound]:
        raise InputError(
            f"the cell that defines build_model must define {' and '.join(missing)} as well.",
            parameter=missing[0],
        )
    return source


def refuse_names_of_other_cells(source: str, names: Sequence[str]) -> None:
    """Raise InputError where the cell uses one of `names`, which another cell assigns."""
    for name in names:
        used = next(
            (
                number
                for number, line in enumerate(source.splitlines(), 1)
                if re.search(rf"\b{name}\b", line)
            ),
            None,
        )
        if used and name not in set(_names_bound(source)):
            raise InputError(
                f"`{name}` is set in another cell, which the training processes do not run. Set it "
                f"in the cell of the three functions.\n  your cell, line {used}: "
                f"{source.splitlines()[used - 1].strip()}",
                parameter=name,
            )


def write_task(source: str, batch_size: int | None, optimizer: str, lr: float | None) -> Path:
    """Write the cell and its task, as `TASK`, to a file; return the file's path.

    The same cell gets the same path, so what was measured with it is found again.
    """
    call = (
        f"task_from(build_model, loss, make_batch, batch_size={batch_size!r}, "
        f"optimizer={optimizer!r}, lr={lr!r})"
    )
    imports = "from gallery_lib.tasks.domains.own_functions import task_from"
    text = f"{source}\n\n{imports}\n\nTASK = {call}\n"
    digest = hashlib.sha256(text.encode()).hexdigest()[:24]
    path = paths.code_folder(paths.cache_dir() / "cells") / digest / CELL_FILE
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def named_after(file: Path, model_class: str) -> str:
    """Move the file into a folder with the name of the model's class; return the task's name.

    Progress and verdict call the model by that folder (`user_errors.short_name`).
    """
    folder = file.parent / model_class
    folder.mkdir(exist_ok=True)
    return f"{file.replace(folder / CELL_FILE)}:TASK"
