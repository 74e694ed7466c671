"""A task of the gallery with functions of the reader's own: another model, loss or optimizer.

The cells of a task's notebook define `build_model`, `loss` and `build_optimizer`. `changed` makes a
task of them, with the data, metrics and sizes of the gallery's. `optimizer_spec` reads an optimizer
off the function that builds it.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from gallery_lib import tasks
from gallery_lib.console import user_errors
from gallery_lib.errors import InputError
from gallery_lib.optim import OptimizerSpec
from gallery_lib.tasks.task import Task

BuildOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
_OF_THE_SPEC = ("params", "lr", "weight_decay")


def optimizer_spec(build_optimizer: BuildOptimizer) -> OptimizerSpec:
    """Return the optimizer that `build_optimizer(parameters)` builds, as a spec.

    The function is called with one parameter. Arguments that differ from torch's defaults are kept.

    Raises:
        InputError: for what is no optimizer of torch.optim with one group of parameters. Such an
            optimizer cannot be built anew for each variant of a comparison.
    """
    try:
        optimizer = build_optimizer([nn.Parameter(torch.zeros(1))])
    except Exception as error:
        line = user_errors.line_of_definition(build_optimizer)
        raise InputError(user_errors.message(error, line), parameter="build_optimizer") from error
    kind = type(optimizer)
    if getattr(torch.optim, kind.__name__, None) is not kind:
        raise user_errors.at_return(
            build_optimizer,
            f"build_optimizer returns {_described(optimizer)}. Return an optimizer of torch.optim: "
            "`torch.optim.AdamW(parameters, lr=1e-3)`.",
        )
    if len(optimizer.param_groups) != 1:
        raise user_errors.at_return(
            build_optimizer,
            f"build_optimizer makes {len(optimizer.param_groups)} groups of parameters; the "
            "notebook measures optimizers with one. Give it `parameters` as they are.",
        )
    group = optimizer.param_groups[0]
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(kind).parameters.items()
        if name not in _OF_THE_SPEC
    }
    return OptimizerSpec(
        kind.__name__,
        lr=float(group["lr"]),
        weight_decay=float(group.get("weight_decay", 0.0)),
        arguments={
            name: group[name]
            for name, default in defaults.items()
            if name in group and group[name] != default and group[name] is not None
        },
    )


def _described(value: Any) -> str:
    if value is None:
        return "nothing (None): is a `return` missing?"
    if isinstance(value, type):
        return f"the class {value.__name__}; call it"
    return f"a {type(value).__name__}"


def changed(
    name: str,
    *,
    build_model: Callable[..., nn.Module] | None = None,
    loss: Callable[[nn.Module, Any], Tensor] | None = None,
    build_optimizer: BuildOptimizer | None = None,
) -> Task:
    """Return the gallery's task `name` with another model, loss or optimizer.

    What is None, data, metrics and sizes are the gallery's. A learning-rate schedule goes with its
    optimizer: another one has none.

    Raises:
        InputError: for an optimizer that `optimizer_spec` refuses.
    """
    task = tasks.get(name)
    values: dict[str, Any] = {"title": f"{task.title}, changed"}
    if build_model is not None:
        values |= {"build_model": build_model, "parameters": None}
    if loss is not None:
        values |= {"loss": loss, "smoothed_loss": None}
    if build_optimizer is not None:
        values["optimizer"] = optimizer_spec(build_optimizer)
    return dataclasses.replace(task, **values)
