"""A schedule's state is plain values, and one that is continued has the same rates."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn

from gallery_lib.optim import schedules

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
