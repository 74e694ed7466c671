"""One-pass optimizers train as torch's classes do, for drawn gradients, weights and options."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optim.torch_cases import GRADIENTS, OPTIONS, WEIGHTS
from optim.torch_oracle import NAMES, assert_same, outcome, pair, random
from torch import nn


@st.composite
def trainings(draw: st.DrawFn) -> tuple[str, list[dict[str, Any]], list[list[str]], bool]:
    """Draw (class, groups of kinds of weights, kinds of gradients, whether by a closure).

    The kinds of gradients are given for each step.
    """
    name = draw(st.sampled_from(NAMES))
    options = st.sampled_from(OPTIONS[name])
    kinds = st.lists(st.sampled_from(list(WEIGHTS)), min_size=1, max_size=3)
    groups = [{"weights": draw(kinds), **draw(options)} for _ in range(draw(st.integers(1, 2)))]
    count = sum(len(group["weights"]) for group in groups)
    step = st.lists(st.sampled_from(list(GRADIENTS)), min_size=count, max_size=count)
    return name, groups, draw(st.lists(step, min_size=1, max_size=4)), draw(st.booleans())


def trained(
    kind: type[torch.optim.Optimizer],
    groups: list[dict[str, Any]],
    steps: list[list[str]],
    by_closure: bool,
) -> Any:
    """Return weights and state dict after these steps.

    At the place of a step that raised is the type of its error.
    """
    seeds = iter(range(100))
    weights: list[nn.Parameter] = []
    made = []
    for group in groups:
        own = [nn.Parameter(WEIGHTS[each](next(seeds))) for each in group["weights"]]
        weights += own
        made.append({**group, "params": own, "weights": 0})
    optimizer = kind(made, lr=0.01, foreach=False)
    calls = 0
    said = []
    for number, step in enumerate(steps):

        def closure(number: int = number, step: list[str] = step) -> float:
            nonlocal calls
            calls += 1
            assert torch.is_grad_enabled() or not by_closure
            for place, (weight, gradient) in enumerate(zip(weights, step, strict=True)):
                drawn = random(*weight.shape, seed=1000 * number + place, dtype=weight.dtype)
                weight.grad = GRADIENTS[gradient](weight.detach(), drawn)
            return 3.0 + number

        if by_closure:
            said.append(outcome(lambda closure=closure: optimizer.step(closure)))
        else:
            closure()
            said.append(outcome(optimizer.step))
    assert calls == len(steps)
    return [weight.detach() for weight in weights], optimizer.state_dict(), said


@pytest.mark.slow
@settings(max_examples=250, deadline=None)
@given(trainings())
def test_drawn_trainings(case: tuple[str, list[dict[str, Any]], list[list[str]], bool]) -> None:
    name, groups, steps, by_closure = case
    ours, theirs = (trained(kind, copy.deepcopy(groups), steps, by_closure) for kind in pair(name))
    assert_same(ours, theirs, name)
