"""The reader's own functions from cells, as a task in a file that training processes import.

The cells of a task's notebook define `build_model`, `loss`, `build_optimizer` and the loop `train`.
As shipped, they are the task's own code, and a reader may change them (`with_your_code`). The cell
of `your_model` defines `build_model`, `loss` and `make_batch` (`your_settings`). The file's folder
is a digest of its content, so what was measured with the same cells is found again.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import inspect
import linecache
import symtable
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gallery_lib.config import TrainConfig, YourModelConfig
from gallery_lib.console.user_errors import CELL_FILE
from gallery_lib.errors import InputError
from gallery_lib.notebooks.cells.display import display_markdown
from gallery_lib.notebooks.cells.task_settings import Settings, checked, completed
from gallery_lib.system import hardware, paths
from gallery_lib.system.files import atomic_write

if TYPE_CHECKING:
    from gallery_lib.tasks.task import Task

FUNCTIONS = ("build_model", "loss", "make_batch")
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


def _check_function(value: Any, name: str) -> None:
    if not inspect.isfunction(value):
        kind = type(value).__name__
        kind = f"the class {value.__name__}" if isinstance(value, type) else f"a {kind}"
        raise InputError(
            f"{name} must be a function, and is {kind}. Write `def {name}(…): …` in its cell, and "
            "run that cell.",
            parameter=name,
        )


def _cell_of(function: Callable[..., Any]) -> str:
    return "".join(linecache.getlines(function.__code__.co_filename))


def _write(source: str) -> Path:
    digest = hashlib.sha256(source.encode()).hexdigest()[:24]
    folder = paths.code_folder(paths.cache_dir() / "cells") / digest
    folder.mkdir(exist_ok=True)
    with atomic_write(folder / CELL_FILE) as file:
        file.write(source)
    return folder / CELL_FILE


# --------------------------------------------------------------------------------------------------
# Cells of a task's notebook


class _Unannotated(ast.NodeTransformer):
    """Assignments without the annotation of what they assign to."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return node
        plain = ast.Assign(targets=[node.target], value=node.value, lineno=node.lineno)
        return ast.copy_location(plain, node)


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


def changed_names(task: Task, functions: Mapping[str, Callable[..., Any]]) -> list[str]:
    """Return the names of those `functions` that differ from the task's own, or from LOOP.

    Raises:
        InputError: for what is no function, and for an optimizer that cannot be measured.
    """
    from gallery_lib.tasks.domains.own_functions import spec_of

    changed = []
    for name, function in functions.items():
        _check_function(function, name)
        if name == "build_optimizer":
            same = spec_of(function) == dataclasses.replace(task.optimizer, schedule=None)
        else:
            own = LOOP if name == "train" else inspect.getsource(getattr(task, name))
            sources = (own, inspect.getsource(function))
            one, other = (ast.dump(without_annotations(source)) for source in sources)
            same = one == other
        if not same:
            changed.append(name)
    return changed


def with_your_code(settings: Settings, **functions: Callable[..., Any]) -> Settings:
    """Return the settings for what the cells of this notebook define.

    As shipped, the cells are the gallery's own task, and the settings stay as they are. What was
    changed is tried in this kernel, and trained and measured by what follows. Which it is, is
    shown.

    Args:
        settings: the notebook's settings.
        **functions: `build_model`, `loss`, `build_optimizer`, and the loop `train`.

    Raises:
        InputError: with the cell's line, for a mistake in the functions.
    """
    from gallery_lib import memory, tasks
    from gallery_lib.measure.comparison import first_pass

    memory.trim()  # what follows trains in other processes
    name = settings.name
    own = changed_names(tasks.get(name), functions)
    notes = []
    if "train" in own:
        notes.append(
            "**The loop is yours, and stays in this notebook**: the launcher and the comparison "
            "below train with the gallery's loop."
        )
        own.remove("train")
    model = name
    if own:
        cells = dict.fromkeys(
            _cell_of(function).strip() for key, function in functions.items() if key != "train"
        )
        arguments = "".join(f", {one}={one}" for one in own)
        lines = [
            *cells,
            "from gallery_lib.tasks.domains.own_functions import changed",
            f'{name} = changed("{name}"{arguments})\n',
        ]
        file = _write("\n\n\n".join(lines))
        model = f"{file}:{name}"
    train, task = dataclasses.replace(settings.train, model=model), tasks.get(model)
    if own:
        first_pass.try_once(train, settings.device)
        notes.append(
            f"**Yours: {', '.join(f'`{one}`' for one in own)}.** What follows trains and measures "
            f"that, with {task.optimizer.in_words}. `{model}` holds your cells."
        )
    else:
        notes.append(f"Model, loss and optimizer are those of the gallery's task `{name}`.")
    display_markdown("\n\n".join(notes))
    return dataclasses.replace(settings, task=task, train=train)


# --------------------------------------------------------------------------------------------------
# The cell of your_model


def your_settings(
    build_model: Callable[[], Any], batch_size: int, parameters: dict[str, Any] | None = None
) -> Settings:
    """Make a task of the reader's cell, try the task, and return the settings for it.

    The cell defines `build_model`, `loss` and `make_batch`. Its source is written to a file, which
    the training processes import. A forward and backward pass runs in this kernel, then one in
    float64.

    Args:
        build_model: the cell's function of that name.
        batch_size: samples per process and step where `parameters` has no batch size.
        parameters: values of the options of YourModelConfig.

    Raises:
        InputError: with the cell's line, for a mistake in the functions; the file is removed then.
    """
    _check_function(build_model, "build_model")
    source = _cell_of(build_model)
    symbols = symtable.symtable(source, "cell", "exec").get_symbols()
    defined = {symbol.get_name() for symbol in symbols if symbol.is_assigned()}
    if missing := [name for name in FUNCTIONS if name not in defined]:
        raise InputError(
            f"the cell that defines build_model must define {' and '.join(missing)} as well.",
            parameter=missing[0],
        )
    config = checked(YourModelConfig, parameters)
    config = dataclasses.replace(config, batch_size=config.batch_size or batch_size)
    file = _write(
        f"{source}\n\nfrom gallery_lib.tasks.domains.own_functions import task_from\n\n"
        f"TASK = task_from(build_model, loss, make_batch, batch_size={config.batch_size!r}, "
        f"optimizer={config.optimizer!r}, lr={config.learning_rate!r})\n"
    )
    try:
        task_name, rows = _tried(file, config)
    except BaseException:
        file.unlink(missing_ok=True)
        raise
    return completed(task_name, config, rows)


def _tried(file: Path, config: YourModelConfig) -> tuple[str, list[list[str]]]:
    """Try one pass; return the task's name, and rows with optimizer and first loss."""
    import torch

    from gallery_lib import tasks
    from gallery_lib.measure.comparison import first_pass
    from gallery_lib.train import precision

    device = hardware.device_type()
    level = precision.chosen_level(config.amp_level, device)
    train = TrainConfig(
        model=f"{file}:TASK", amp_level=level, amp_dtype=config.amp_dtype, seed=config.seed
    )
    loss, model_class = first_pass.try_once(train, torch.device(device))
    # Progress and verdict call the model by the folder (`user_errors.short_name`).
    folder = file.parent / model_class
    folder.mkdir(exist_ok=True)
    task_name = f"{file.replace(folder / CELL_FILE)}:TASK"
    optimizer = tasks.get(task_name).optimizer.in_words
    return task_name, [["optimizer", optimizer], ["loss of the first batch", f"{loss:.4g}"]]
