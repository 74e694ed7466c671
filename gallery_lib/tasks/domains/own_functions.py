"""Tasks with functions of the reader's own.

`task_from` makes one of a model, a loss and a batch, for the notebook your_model. `changed` is a
task of the gallery with another model, loss or optimizer: those that the cells of its notebook
define. Its data, metrics and sizes are the gallery's.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from gallery_lib import tasks
from gallery_lib.config import TrainConfig
from gallery_lib.console import user_errors
from gallery_lib.data.loading.nesting import tensors_in
from gallery_lib.errors import InputError
from gallery_lib.optim import OptimizerSpec
from gallery_lib.tasks.task import FULL, QUICK, Splits, Task

BATCHES = 256
HELD_OUT_BATCHES = 8
# function (batch size, generator) → batch: a nesting of tensors [batch size, …]
MakeBatch = Callable[[int, torch.Generator], Any]


class MadeBatches(Dataset[Any]):
    """Data set whose item i is a whole batch, made from a generator seeded by (seed, i) alone.

    Raises:
        InputError: for a batch without tensors, and for one of another size.
    """

    def __init__(self, make_batch: MakeBatch, batch_size: int, batches: int, seed: int) -> None:
        """Make `batches` batches of `batch_size` with `make_batch`, each when it is needed."""
        self.make_batch, self.batch_size = make_batch, batch_size
        self.batches, self.seed = batches, seed

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + index)
        batch = self.make_batch(self.batch_size, generator)
        if problem := _problem(batch, self.batch_size):
            raise user_errors.at_definition(self.make_batch, problem)
        return batch

    @staticmethod
    def collate(items: list[Any]) -> Any:
        """Return the only one of `items`, which is the batch."""
        return items[0]


def _problem(batch: Any, batch_size: int) -> str:
    tensors = list(tensors_in(batch))
    if not tensors:
        kind = type(batch).__name__
        return f"make_batch returns {kind} without a tensor. Return tensors, in any nesting."
    if not any(batch_size in tensor.shape for tensor in tensors):
        shapes = " and ".join(str(list(tensor.shape)) for tensor in tensors[:3])
        return (
            f"make_batch({batch_size}, generator) returns {shapes}, of another size than "
            f"{batch_size}. Use its first argument."
        )
    return ""


def optimizer_spec(name: str, learning_rate: float | None) -> OptimizerSpec:
    """Return the class `name` of torch.optim with torch's defaults, and no weight decay.

    SGD has a momentum of 0.9.
    """
    if learning_rate is None:
        learning_rate = inspect.signature(getattr(torch.optim, name)).parameters["lr"].default
    return OptimizerSpec(name, learning_rate, arguments={"momentum": 0.9} if name == "SGD" else {})


def task_from(
    build_model: Callable[[], nn.Module],
    loss: Callable[[nn.Module, Any], Tensor],
    make_batch: MakeBatch,
    *,
    batch_size: int = 8,
    optimizer: str = "AdamW",
    lr: float | None = None,
    name: str = "your_model",
) -> Task:
    """Return a task that trains `build_model()` on `loss(model, batch)` over made batches.

    The held-out metric is the loss itself. The batch size is fixed: a run that asks for another
    raises InputError.

    Args:
        build_model: returns the model.
        loss: takes the model and a batch, and returns a scalar tensor.
        make_batch: takes the batch size and a generator, and returns a batch.
        batch_size: the batch size of every run.
        optimizer: a class of torch.optim.
        lr: learning rate; torch's default for the optimizer when left out.
        name: name of the task.
    """

    def data(config: TrainConfig) -> Splits:
        if config.batch_size not in (None, batch_size):
            raise InputError(
                f"batch_size={config.batch_size}: the model of this notebook makes batches of "
                f"{batch_size}. Change it there.",
                parameter="batch_size",
            )
        return Splits(
            MadeBatches(make_batch, batch_size, BATCHES, config.seed),
            MadeBatches(make_batch, batch_size, HELD_OUT_BATCHES, config.seed + 1),
        )

    def metrics(model: nn.Module, batch: Any) -> dict[str, tuple[Tensor, int]]:
        return {"loss": (loss(model, batch).detach(), 1)}

    return Task(
        name=name,
        title="Your model",
        domain="your own",
        batch_size=batch_size,
        build_model=build_model,
        data=data,
        loss=loss,
        metrics=metrics,
        chance=lambda splits: {},
        optimizer=optimizer_spec(optimizer, lr),
        flops_per_sample=0.0,
        quick=QUICK | {"rounds": 8},
        full=FULL,
        samples_per_item=batch_size,
    )


# --------------------------------------------------------------------------------------------------
# A task of the gallery with functions of the reader's own


BuildOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def spec_of(build_optimizer: BuildOptimizer) -> OptimizerSpec:
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
    if getattr(torch.optim, kind.__name__, None) is not kind or len(optimizer.param_groups) != 1:
        raise user_errors.at_definition(
            build_optimizer,
            f"build_optimizer returns {kind.__name__}, which is no optimizer of torch.optim with "
            "one group of parameters. Return `torch.optim.AdamW(parameters, lr=1e-3)`, say.",
        )
    group = optimizer.param_groups[0]
    arguments = {
        name: group[name]
        for name, parameter in inspect.signature(kind).parameters.items()
        if name not in ("params", "lr", "weight_decay")
        and group.get(name) not in (parameter.default, None)
    }
    weight_decay = float(group.get("weight_decay", 0.0))
    return OptimizerSpec(kind.__name__, float(group["lr"]), weight_decay, arguments=arguments)


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
        InputError: for an optimizer that `spec_of` refuses.
    """
    task = tasks.get(name)
    values: dict[str, Any] = {"title": f"{task.title}, changed"}
    if build_model is not None:
        values |= {"build_model": build_model, "parameters": None}
    if loss is not None:
        values["loss"] = loss
    if build_optimizer is not None:
        values["optimizer"] = spec_of(build_optimizer)
    return dataclasses.replace(task, **values)
