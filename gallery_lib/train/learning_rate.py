"""Learning rate of a run by step: the schedule that its options ask for, or the task's own."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from gallery_lib.config import TrainConfig
from gallery_lib.errors import InputError
from gallery_lib.optim import schedules
from gallery_lib.tasks.task import Task


def check(config: TrainConfig, task: Task) -> None:
    """Raise InputError for options of the schedule that do not go together, as far as is known."""
    name = config.lr_schedule
    wrong = {
        "lr_step_size": config.lr_step_size is not None and name != "step",
        "lr_schedule_steps": (
            config.lr_schedule_steps is not None and name not in schedules.WITH_LENGTH
        ),
    }
    for parameter in (parameter for parameter, is_wrong in wrong.items() if is_wrong):
        which = "step" if parameter == "lr_step_size" else ", ".join(schedules.WITH_LENGTH)
        raise InputError(
            f"{parameter}={getattr(config, parameter)} is for lr_schedule={which}, and lr_schedule "
            f"is {name}. Leave it out, or choose such a schedule.",
            parameter=parameter,
        )
    if config.lr_warmup_steps and name == "task" and task.optimizer.schedule:
        raise InputError(
            f"lr_warmup_steps={config.lr_warmup_steps}: {task.name} has a schedule of its own. "
            "Choose another with lr_schedule=none, linear, cosine, step or onecycle.",
            parameter="lr_warmup_steps",
        )
    # With epochs, too, the run may have fewer steps.
    if config.max_steps is not None and config.epochs is None:
        _check_length(config, config.max_steps)


def _check_length(config: TrainConfig, total_steps: int) -> None:
    """Refuse a schedule that ends before the run, or has no steps but its warm-up."""
    if config.lr_schedule not in schedules.WITH_LENGTH:
        return
    steps = config.lr_schedule_steps or total_steps
    if steps < total_steps:
        raise InputError(
            f"lr_schedule_steps={steps}: the run has {total_steps} steps, and the schedule must "
            "not end before it. Give at least so many, or leave it out.",
            parameter="lr_schedule_steps",
        )
    if config.lr_warmup_steps and config.lr_warmup_steps > steps - 2:
        raise InputError(
            f"lr_warmup_steps={config.lr_warmup_steps} of {steps} steps: at least two must follow "
            "the warm-up. Choose fewer of them, or a longer run.",
            parameter="lr_warmup_steps",
        )


def scheduler(
    config: TrainConfig, task: Task, optimizer: Optimizer, *, total_steps: int
) -> LRScheduler | None:
    """Return the schedule of a run of `total_steps`; None where the learning rate is constant.

    Raises:
        InputError: for a warm-up that leaves no steps, or a schedule that is shorter than the run.
    """
    if config.lr_schedule == "task" and task.optimizer.schedule:
        return lr_scheduler.LambdaLR(optimizer, task.optimizer.schedule)
    _check_length(config, total_steps)
    return schedules.scheduler(
        "none" if config.lr_schedule == "task" else config.lr_schedule,
        optimizer,
        steps=config.lr_schedule_steps or total_steps,
        warmup_steps=config.lr_warmup_steps,
        step_size=config.lr_step_size,
    )


def facts(config: TrainConfig, rates: list[float], steps: int) -> dict[str, Any]:
    """Return what the results say about the learning rate: schedule, first, last and changes.

    Args:
        config: the options of the run.
        rates: the rate of each of the last steps, which are all unless the run was continued.
        steps: number of the last step.
    """
    changes, step = [], steps - len(rates) + 1
    for rate, same in groupby(rates):
        changes.append([step, rate])
        step += len(list(same))
    return {
        "schedule": config.lr_schedule,
        "first": rates[0] if rates else None,
        "last": rates[-1] if rates else None,
        "changes": changes,
    }
