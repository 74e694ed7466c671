"""The functions that a task's notebook shows: whether they are the gallery's, and what if not.

The cells of a task's notebook define `build_model`, `loss`, `build_optimizer` and the loop `train`.
As shipped, they are the task's own code. A reader may change them. What is changed goes to a file
with a task in it, which the training processes import. The file's name is a digest of its content,
so that a kept float64 reference of the same code is found again.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import linecache
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from gallery_lib.console.user_errors import CELL_FILE
from gallery_lib.errors import InputError
from gallery_lib.system import paths
from gallery_lib.system.files import atomic_write

LOOP = '''
def train(model, batches, optimizer):
    """Train one step for each batch, and return the loss of each."""
    model.train()
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype, enabled=dtype is not None):
            value = loss(model, batch)
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(value.item())
    return losses
'''.strip()
"""The training loop of the notebooks, as their cell shows it."""


def without_annotations(source: str) -> ast.FunctionDef:
    """Return the function of the source, without its annotations and docstring."""
    (function,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(function, ast.FunctionDef)
    function.returns = None
    for argument in (*function.args.args, *function.args.kwonlyargs):
        argument.annotation = None
    if ast.get_docstring(function) is not None:
        function.body = function.body[1:]
    return _Unannotated().visit(function)  # type: ignore[no-any-return]


class _Unannotated(ast.NodeTransformer):
    """Assignments without the annotation of what they assign to."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return node
        plain = ast.Assign(targets=[node.target], value=node.value, lineno=node.lineno)
        return ast.copy_location(plain, node)


def same_code(one: str, other: str) -> bool:
    """Return whether two functions do the same, line by line."""
    return ast.dump(without_annotations(one)) == ast.dump(without_annotations(other))


def source_of(function: Callable[..., Any], name: str) -> str:
    """Return the source of a function that a cell of this kernel defines.

    Raises:
        InputError: for what is no such function.
    """
    if not inspect.isfunction(function):
        raise InputError(
            f"{name} must be a function, and is {_kind(function)}. Run the cell that defines it.",
            parameter=name,
        )
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        raise InputError(
            f"the source of {name} is not to be found. Define it in a cell, and run that cell.",
            parameter=name,
        ) from None


def _kind(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def changed_names(task: Any, functions: Mapping[str, Callable[..., Any]]) -> list[str]:
    """Return the names of those `functions` that differ from the task's own, or from LOOP.

    Raises:
        InputError: for what is no function, and for an optimizer that cannot be measured.
    """
    from gallery_lib.tasks.domains.own_functions import spec_of

    sources = {name: source_of(function, name) for name, function in functions.items()}
    same = {
        "build_model": lambda: same_code(
            sources["build_model"], inspect.getsource(task.build_model)
        ),
        "loss": lambda: same_code(sources["loss"], inspect.getsource(task.loss)),
        "build_optimizer": lambda: (
            spec_of(functions["build_optimizer"]) == _without_schedule(task.optimizer)
        ),
        "train": lambda: same_code(sources["train"], LOOP),
    }
    return [name for name in functions if not same[name]()]


def _without_schedule(spec: Any) -> Any:
    from dataclasses import replace

    return replace(spec, schedule=None)


def write_task(
    task_name: str, functions: Iterable[Callable[..., Any]], changed: Iterable[str]
) -> str:
    """Write the cells of `functions` and a task of those that are `changed`.

    Returns:
        The task's name as the options of a run take it, FILE:NAME.
    """
    cells = dict.fromkeys(
        "".join(linecache.getlines(function.__code__.co_filename)).strip() for function in functions
    )
    arguments = "".join(f", {name}={name}" for name in changed)
    source = "\n\n\n".join(
        [
            *cells,
            "from gallery_lib.tasks.domains.own_functions import changed",
            f'{task_name} = changed("{task_name}"{arguments})\n',
        ]
    )
    digest = hashlib.sha256(source.encode()).hexdigest()[:24]
    folder = paths.code_folder(paths.cache_dir() / "cells") / digest
    folder.mkdir(exist_ok=True)
    path = Path(folder, CELL_FILE)
    with atomic_write(path) as file:
        file.write(source)
    return f"{path}:{task_name}"
