"""The change to a script that gives it the acceleration: `change(path, trial)`, a unified diff.

A diff is given only where its places are sure. Each optimizer that the trial saw is made in one
statement of a line of its own, `optimizer = KIND(model.parameters(), …)`, of a model that is made
in the same function or at the top of the file, and no library drives the loop. Elsewhere the reader
gets the lines, and where they belong (report/trial.py).
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from gallery_lib.trial.result import Trial

_DRIVERS = ("accelerate", "transformers", "lightning", "pytorch_lightning", "lightning_fabric")
_Scope = ast.Module | ast.FunctionDef


def change(path: Path, trial: Trial) -> str | None:
    """Return the diff of the script at `path`, or None where a place is not sure."""
    try:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, ValueError, SyntaxError):
        return None
    lines = text.split("\n")
    kinds = sorted(one["name"] for one in trial.optimizers)
    made = sorted(_made(tree, kinds), key=lambda one: one[0].lineno)
    models = {model for _, _, model, _ in made}
    weights = {
        "model": sorted(model["weights"] for model in trial.models),
        "optimizer": sorted(one["weights"] for one in trial.optimizers),
    }
    if (
        any(model["compiled"] for model in trial.models)
        or _driven(tree)
        or sorted(kind for _, kind, _, _ in made) != kinds
        or weights["model"] != weights["optimizer"]
        or not len(models) == len(made) == len(trial.models)
    ):
        return None
    new: dict[int, str] = {}
    for statement, _, model, optimizer in made:
        indent, alone = _indent(lines, statement)
        if not alone:
            return None
        names = f"{model}, {optimizer}"
        new[statement.end_lineno or 0] = f"{indent}{names} = gallery_lib.accelerate({names})"
    first = min(new)
    imports = [
        (node.end_lineno or 0, _indent(lines, node)[1])
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom) and node.lineno < first
    ]
    if not imports or not imports[-1][1]:
        return None
    new[imports[-1][0]] = "import gallery_lib"
    changed = [
        line
        for number, own in enumerate(lines, 1)
        for line in ([own, new[number]] if number in new else [own])
    ]
    try:
        ast.parse("\n".join(changed))
    except SyntaxError:
        return None
    head = path.name, f"{path.name}, accelerated"
    return "\n".join(difflib.unified_diff(lines, changed, *head, n=1, lineterm=""))


def _indent(lines: Sequence[str], statement: ast.stmt) -> tuple[str, bool]:
    """Return a statement's indentation, and whether nothing else is in its lines."""
    first, last = lines[statement.lineno - 1], lines[(statement.end_lineno or 0) - 1]
    before = first.encode()[: statement.col_offset].decode()
    after = last.encode()[statement.end_col_offset :].decode()
    alone = not before.strip() and re.fullmatch(r"\s*(#.*)?", after) is not None
    return before, alone


def _driven(tree: ast.Module) -> bool:
    """Return whether another library drives the loop."""
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        if any(name.split(".")[0] in _DRIVERS for name in names):
            return True
    return False


def _made(tree: ast.Module, kinds: Sequence[str]) -> Iterator[tuple[ast.Assign, str, str, str]]:
    """Yield the statements that make an optimizer, with its kind and the two names.

    They stand in the function, or at the top of the file, where the model's name is bound.
    """
    scopes: list[_Scope] = [tree, *(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))]
    for scope in scopes:
        bound: set[str] = set()
        for node in _of_scope(scope):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                bound.add(node.id)
            match node:
                case ast.Assign(
                    targets=[ast.Name(id=optimizer)],
                    value=ast.Call(
                        func=ast.Attribute(attr=kind) | ast.Name(id=kind),
                        args=[ast.Call(func=ast.Attribute(ast.Name(id=model), "parameters")), *_],
                    ),
                ) if kind in kinds and model in bound:
                    yield node, kind, model, optimizer


def _of_scope(scope: _Scope) -> Iterator[ast.AST]:
    """Yield the nodes of a scope in the order of the file, without those of functions inside."""
    waiting: list[ast.AST] = list(scope.body)
    while waiting:
        node = waiting.pop(0)
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            waiting[:0] = ast.iter_child_nodes(node)
