"""The change to a script that gives it the acceleration: `change(path, trial)`, a unified diff.

A diff is given only where the places are sure: each model that the trial saw is the one argument's
`NAME.parameters()` of an optimizer of the same name that the trial saw, and no library drives the
loop. Elsewhere the reader gets the lines, and where they belong (report/trial.py).
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from pathlib import Path

from gallery_lib.trial.result import Trial

_DRIVERS = ("accelerate", "transformers", "lightning", "pytorch_lightning", "lightning_fabric")


def change(path: Path, trial: Trial) -> str | None:
    """Return the diff of the script at `path`, or None where a place is not sure."""
    try:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, ValueError, SyntaxError):
        return None
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    if not imports or any(model["compiled"] for model in trial.models) or _driven(tree):
        return None
    kinds = [one["name"] for one in trial.optimizers]
    made = list(_made(tree, set(kinds)))
    if len(made) != len(kinds) or len({model for _, model, _ in made}) != len(trial.models):
        return None
    old = text.splitlines(keepends=True)
    new = {imports[-1].end_lineno: "import gallery_lib\n"}
    for statement, model, optimizer in made:
        names = f"{model}, {optimizer}"
        indent = " " * statement.col_offset
        new[statement.end_lineno] = f"{indent}{names} = gallery_lib.accelerate({names})\n"
    changed = [
        line if line.endswith("\n") else line + "\n"
        for number, own in enumerate(old, 1)
        for line in ([own, new[number]] if number in new else [own])
    ]
    name = path.name
    return "".join(difflib.unified_diff(old, changed, f"{name}", f"{name}, accelerated", n=1))


def _driven(tree: ast.Module) -> bool:
    """Return whether another library drives the loop."""
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        if any(name.split(".")[0] in _DRIVERS for name in names):
            return True
    return False


def _made(tree: ast.Module, kinds: set[str]) -> Iterator[tuple[ast.Assign, str, str]]:
    """Yield the statements `optimizer = KIND(model.parameters(), …)`, with the two names."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(
                targets=[ast.Name(id=optimizer)],
                value=ast.Call(
                    func=ast.Attribute(attr=kind) | ast.Name(id=kind),
                    args=[ast.Call(func=ast.Attribute(ast.Name(id=model), "parameters")), *_],
                ),
            ) if kind in kinds:
                yield node, model, optimizer
