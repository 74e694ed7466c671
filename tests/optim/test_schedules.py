"""A schedule's state is plain values, and one that is continued has the same rates."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn

from gallery_lib.optim import schedules
from gallery_lib.optim.updates import Updates

STEPS = 12


def training(name: str, warmup: int) -> tuple[torch.optim.Optimizer, Any]:
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.5, momentum=0.9)
    return optimizer, schedules.scheduler(name, optimizer, steps=STEPS, warmup_steps=warmup)


def rates(optimizer: torch.optim.Optimizer, schedule: Any, steps: int) -> list[float]:
    seen = []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return seen


@pytest.mark.parametrize("name", schedules.WITH_LENGTH)
@pytest.mark.parametrize("warmup", [0, 3])
@pytest.mark.parametrize("after", [2, 3, 7])
def test_a_schedule_goes_on_from_a_file_of_its_state(name: str, warmup: int, after: int) -> None:
    whole = rates(*training(name, warmup), STEPS)
    optimizer, schedule = training(name, warmup)
    begun = rates(optimizer, schedule, after)
    file = io.BytesIO()
    torch.save([optimizer.state_dict(), schedule.state_dict()], file)
    file.seek(0)
    states = torch.load(file, weights_only=True)
    optimizer, schedule = training(name, warmup)
    for part, state in zip((optimizer, schedule), states, strict=True):
        part.load_state_dict(state)
    assert begun + rates(optimizer, schedule, STEPS - after) == whole
    if warmup:
        assert whole[warmup] == max(whole) == pytest.approx(0.5)
    assert optimizer.param_groups[0]["momentum"] == 0.9


@pytest.mark.parametrize("name", schedules.WITH_LENGTH)
@pytest.mark.parametrize("warmup", [0, 3])
def test_a_skipped_step_does_not_count_under_torch_s_scaler(name: str, warmup: int) -> None:
    expected = rates(*training(name, warmup), STEPS)
    optimizer, schedule = training(name, warmup)
    updates = Updates(optimizer, torch.amp.GradScaler("cpu", init_scale=4.0), schedule)
    seen = []
    for step in range(STEPS):
        overflows = step in (0, 4, 5)
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad = torch.full_like(parameter, float("inf") if overflows else 1.0)
        updates.scaler.scale(torch.ones(()))  # as a backward pass does, which makes its state
        if not overflows:
            seen.append(optimizer.param_groups[0]["lr"])
        updates.take()
    assert updates.skipped_steps() == 3
    assert seen == expected[: STEPS - 3]
