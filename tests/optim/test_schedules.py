"""A schedule goes on from its state, which is plain values; skipped steps do not count."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from optim.training import PAIRS, NothingWaits, model, warmup
from refusal import refused
from torch import nn
from torch.optim import lr_scheduler

from gallery_lib.optim import schedules
from gallery_lib.optim.schedules import SkipAware
from gallery_lib.optim.updates import Updates

STEPS = 12


def training(name: str, warmup: int) -> tuple[torch.optim.Optimizer, Any]:
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.5, momentum=0.9)
    return optimizer, schedules.scheduler(name, optimizer, steps=STEPS, warmup_steps=warmup)


def rates_of(optimizer: torch.optim.Optimizer, schedule: Any, steps: int) -> list[float]:
    seen = []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return seen


@pytest.mark.parametrize("name", schedules.WITH_LENGTH)
@pytest.mark.parametrize("warmup", [0, 3])
def test_a_skipped_step_does_not_count_under_torch_s_scaler(name, warmup):
    expected = rates_of(*training(name, warmup), STEPS)
    optimizer, schedule = training(name, warmup)
    updates = Updates(optimizer, torch.amp.GradScaler("cpu", init_scale=4.0), schedule)
    seen = []
    for step in range(STEPS):
        overflows = step in (0, 4, 5)
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad = torch.full_like(parameter, float("inf") if overflows else 1.0)
        updates.scaler.scale(torch.ones(()))  # as a backward pass does, which makes its state
        if not overflows:
            seen.append(updates.learning_rate())
        updates.take()
    assert updates.skipped_steps() == 3
    assert seen == expected[: STEPS - 3]


# --------------------------------------------------------------------------------------------------
# Behind SkipAware.

SKIPPED = (0, 3, 4, 5, 6, 7, 20)
SCHEDULES = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, [warmup, lambda update: 0.9**update]),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 3, 0.5),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=5), lr_scheduler.ExponentialLR(o, 0.9)], [5]
    ),
    **{
        f"{name} of a run": functools.partial(schedules.scheduler, name, steps=40, warmup_steps=5)
        for name in schedules.WITH_LENGTH
    },
}


def optimizer_of_two_groups():
    net = model()
    return PAIRS[1].ours(
        [{"params": net[0].parameters(), "lr": 0.1}, {"params": net[3].parameters(), "lr": 0.3}]
    )


def step(optimizer, schedule, skipped: bool) -> list[float]:
    """Take one step whose flag is set, as a scaler sets it; return the rates that it has used."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    used = []
    handle = optimizer.register_step_post_hook(
        lambda *_: used.extend(group["lr"] for group in optimizer.param_groups)
    )
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(1.0), torch.tensor(float(skipped))
    optimizer.step()
    del optimizer.grad_scale, optimizer.found_inf
    handle.remove()
    with NothingWaits():
        schedule.step()
    return used


def torchs(name: str, updates: int):
    """Return torch's schedule after so many updates, and its rates."""
    optimizer = optimizer_of_two_groups()
    schedule = SCHEDULES[name](optimizer)
    for _ in range(updates):
        optimizer.step()
        schedule.step()
    return schedule, [group["lr"] for group in optimizer.param_groups]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_step_has_the_learning_rate_of_the_updates_done_before_it(schedule):
    """And its state, at any time, is torch's at the updates done: either goes on from it."""
    optimizer = optimizer_of_two_groups()
    ours, updates = SkipAware(SCHEDULES[schedule](optimizer)), 0
    for number in range(24):
        if number == 8:
            saved = optimizer.state_dict(), ours.state_dict()
            optimizer = optimizer_of_two_groups()
            ours = SkipAware(SCHEDULES[schedule](optimizer))
            optimizer.load_state_dict(saved[0])
            ours.load_state_dict(saved[1])
            theirs, rates = torchs(schedule, 2)
            assert saved[1]["last_epoch"] == theirs.last_epoch
            assert saved[1]["_last_lr"] == rates
            assert [group["lr"] for group in saved[0]["param_groups"]] == rates
        assert step(optimizer, ours, number in SKIPPED) == torchs(schedule, updates)[1]
        updates += number not in SKIPPED
    assert ours.get_last_lr() == torchs(schedule, updates)[1]


def test_a_schedule_of_a_metric_is_refused():
    with refused("scheduler", "ReduceLROnPlateau"):
        SkipAware(lr_scheduler.ReduceLROnPlateau(optimizer_of_two_groups()))
