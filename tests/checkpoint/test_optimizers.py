"""A checkpoint of any implementation of an optimizer is gone on with by the others."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import nn

from gallery_lib.checkpoint import state
from gallery_lib.optim import fused, fused_cpu, sync_free

OPTIONS: dict[str, dict[str, Any]] = {
    "AdamW": {"lr": 0.01, "weight_decay": 0.1},
    "SGD": {"lr": 0.1, "momentum": 0.9},
}
FORMS = {"torch": torch.optim, "one pass": fused_cpu, "fused": fused, "sync-free": sync_free}


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    batch = torch.randn(16, 8, generator=torch.Generator().manual_seed(number))
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize(("before", "after"), [*itertools.product(FORMS, FORMS)])
@pytest.mark.parametrize("name", OPTIONS)
def test_states_pass_from_one_implementation_to_another(name: str, before: str, after: str) -> None:
    model = _model()
    first = getattr(FORMS[before], name)(model.parameters(), **OPTIONS[name])
    for number in range(3):
        _step(model, first, number)
    other = copy.deepcopy(model)
    second = getattr(FORMS[after], name)(other.parameters(), **{**OPTIONS[name], "lr": 5.0})
    large, rest = state.state_of(first, model)
    assert state.difference(second, other, rest) == ""
    state.load(second, other, large, copy.deepcopy(rest))
    assert second.param_groups[0]["lr"] == OPTIONS[name]["lr"]
    for number in range(3, 6):
        _step(model, first, number)
        _step(other, second, number)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=0 if before == after else 1e-5, atol=0)


def test_other_optimizers_and_other_groups_differ() -> None:
    model = _model()
    _, rest = state.state_of(torch.optim.AdamW(model.parameters()), model)
    assert "AdamW" in state.difference(torch.optim.SGD(model.parameters()), model, rest)
    fewer = torch.optim.AdamW(list(model.parameters())[:2])
    assert "has 4 parameters" in state.difference(fewer, model, rest)


def test_the_implementation_is_the_present_optimizers_choice() -> None:
    model = _model()
    first = torch.optim.AdamW(model.parameters(), foreach=True)
    _step(model, first, 0)
    large, rest = state.state_of(first, model)
    second = torch.optim.AdamW(model.parameters(), foreach=False)
    state.load(second, model, large, rest)
    assert second.param_groups[0]["foreach"] is False
