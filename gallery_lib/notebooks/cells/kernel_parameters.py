"""Parameters of a notebook: the names that its parameters cells have assigned in this kernel."""

from __future__ import annotations

import ast
from typing import Any


def _assigned_names(source: str) -> list[str] | None:
    """Return the names that a cell assigns, if it holds only assignments of literals.

    Returns None for any other cell.
    """
    try:
        statements = ast.parse(source).body
    except SyntaxError:
        return None
    names = []
    for statement in statements:
        targets = (
            statement.targets
            if isinstance(statement, ast.Assign)
            else [statement.target]
            if isinstance(statement, ast.AnnAssign)
            else None
        )
        if (
            targets is None
            or statement.value is None  # type: ignore[attr-defined]
            or not all(isinstance(t, ast.Name) for t in targets)
        ):
            return None
        try:
            ast.literal_eval(statement.value)  # type: ignore[attr-defined]
        except ValueError:
            return None
        names += [t.id for t in targets if isinstance(t, ast.Name)]
    return names or None


def binds(source: str, name: str) -> bool:
    """Return whether a cell assigns the name at its top level, alone or in a tuple."""
    try:
        statements = ast.parse(source).body
    except SyntaxError:
        return False
    return any(
        isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name
        for statement in statements
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        for node in ast.walk(statement)
    )


def cell_that_assigns(name: str) -> str | None:
    """Return the source of the newest cell of this kernel that assigns `name`, or None."""
    from IPython import get_ipython

    shell = get_ipython()  # type: ignore[no-untyped-call]
    cells = shell.user_ns.get("In", []) if shell else []
    return next((source for source in reversed(cells) if binds(source, name)), None)


def kernel_parameters() -> dict[str, Any]:
    """Return the parameters that are set in this kernel.

    The parameters cell assigns them, and so does the cell that papermill inserts behind it.
    """
    from IPython import get_ipython

    shell = get_ipython()  # type: ignore[no-untyped-call]
    if shell is None:
        return {}
    names = [
        name for source in shell.user_ns.get("In", []) for name in _assigned_names(source) or []
    ]
    return {name: shell.user_ns[name] for name in dict.fromkeys(names) if name in shell.user_ns}
