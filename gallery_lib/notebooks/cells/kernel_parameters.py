"""Parameters of a notebook: the names that its parameters cells have assigned in this kernel."""

from __future__ import annotations

import ast
import re
from typing import Any, TypeVar

from gallery_lib.config import options

Config = TypeVar("Config")


def _namespace() -> dict[str, Any]:
    from IPython import get_ipython

    shell = get_ipython()  # type: ignore[no-untyped-call]
    return shell.user_ns if shell else {}


def _literals_assigned(source: str) -> list[str]:
    """Return the names that a cell assigns which holds assignments of literals alone."""
    names: list[str] = []
    try:
        for statement in ast.parse(source).body:
            if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
                return []
            ast.literal_eval(statement.value)
            if isinstance(statement, ast.AnnAssign):
                names.append(ast.unparse(statement.target))
            else:
                names += map(ast.unparse, statement.targets)
    except (SyntaxError, ValueError):
        return []
    return names


def cell_that_assigns(name: str) -> str | None:
    """Return the source of the newest cell of this kernel that begins a line with `name =`."""
    assignment = re.compile(rf"^{name}\b[\w\s,:]*=(?!=)", re.MULTILINE)
    return next(filter(assignment.search, reversed(_namespace().get("In", []))), None)


def kernel_parameters() -> dict[str, Any]:
    """Return the parameters that are set in this kernel.

    The parameters cell assigns them, and so does the cell that papermill inserts behind it.
    """
    names = _namespace()
    assigned = (name for source in names.get("In", []) for name in _literals_assigned(source))
    return {name: names[name] for name in assigned if name in names}


def checked(cls: type[Config], parameters: dict[str, Any] | None) -> Config:
    """Return `parameters`, or those of this kernel, as options of the class.

    Raises:
        InputError: for an unknown parameter, a wrong type or an impossible value.
    """
    return options.from_mapping(cls, kernel_parameters() if parameters is None else parameters)
