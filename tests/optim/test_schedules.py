"""A schedule has the same rates under torch's scaler and ours, and goes on from its state."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn

from gallery_lib import optim
from gallery_lib.optim.grad_scaler import GradScaler, Updates

STEPS = 12


def training(name: str, warmup: int, kind: type[torch.amp.GradScaler]) -> Updates:
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.5, momentum=0.9)
    schedule = optim.scheduler(name, optimizer, steps=STEPS, warmup_steps=warmup)
    return Updates(optimizer, kind("cpu", init_scale=4.0), schedule)


def rates_of(updates: Updates, steps: range, overflow_at: tuple[int, ...]) -> list[float]:
    seen = []
    for step in steps:
        for parameter in updates.optimizer.param_groups[0]["params"]:
            overflows = step in overflow_at
            parameter.grad = torch.full_like(parameter, float("inf") if overflows else 1.0)
        updates.scaler.scale(torch.ones(()))  # as a backward pass does, which makes its state
        seen.append(updates.learning_rate())
        updates.take()
    return seen


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", optim.WITH_LENGTH)
@pytest.mark.parametrize("warmup", [0, 3])
@pytest.mark.parametrize("kind", [torch.amp.GradScaler, GradScaler])
def test_every_step_counts_and_a_file_of_the_state_goes_on(
    name: str, warmup: int, kind: Any
) -> None:
    whole = rates_of(training(name, warmup, torch.amp.GradScaler), range(STEPS), ())
    first = training(name, warmup, kind)
    begun = rates_of(first, range(7), (0, 4, 5))
    assert first.skipped_steps() == 3
    file = io.BytesIO()
    torch.save([first.optimizer.state_dict(), first.schedule.state_dict()], file)
    file.seek(0)
    second = training(name, warmup, kind)
    states = torch.load(file, weights_only=True)
    for part, state in zip((second.optimizer, second.schedule), states, strict=True):
        part.load_state_dict(state)
    assert begun + rates_of(second, range(7, STEPS), ()) == whole
    assert whole[warmup] == max(whole) == pytest.approx(0.5)
