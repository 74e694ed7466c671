"""The optimizers for CUDA train as torch's classes do, also when something changes between steps.

A step that finds its group as it was in the last one takes a shorter way. Here everything that it
remembers is changed in turn. They run on the CPU, where torch has its fused implementation as well.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optim.torch_cases import GRADIENTS, OPTIONS, WEIGHTS
from optim.torch_oracle import assert_same, outcome, random
from torch import nn

from gallery_lib.optim import fused

NAMES = ("Adam", "AdamW", "SGD", "Adagrad")
ROUNDED = (torch.float32, torch.float64)


def _state_from_a_checkpoint(optimizer: torch.optim.Optimizer) -> None:
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def _a_state_is_dropped(optimizer: torch.optim.Optimizer) -> None:
    # Adagrad makes its states when it is made.
    if not isinstance(optimizer, torch.optim.Adagrad):
        optimizer.state.pop(optimizer.param_groups[0]["params"][0], None)


def _a_state_is_replaced(optimizer: torch.optim.Optimizer) -> None:
    state = optimizer.state.get(optimizer.param_groups[0]["params"][0], {})
    for name, value in state.items():
        if isinstance(value, torch.Tensor) and name != "step":
            state[name] = torch.zeros_like(value)


def _another_rate(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        group["lr"] = 0.02


def _other_memory(optimizer: torch.optim.Optimizer) -> None:
    weight = optimizer.param_groups[0]["params"][0]
    weight.data = weight.data.clone()


def _another_layout(optimizer: torch.optim.Optimizer) -> None:
    weight = optimizer.param_groups[0]["params"][0]
    weight.data = weight.data.t().contiguous().t() if weight.dim() == 2 else weight.data.clone()
    weight.grad = None if weight.grad is None else torch.empty_like(weight).copy_(weight.grad)


def _weights_in_another_order(optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["params"].reverse()


def _a_weight_more(optimizer: torch.optim.Optimizer) -> None:
    weight = nn.Parameter(random(3, 3, seed=77))
    weight.grad = torch.ones_like(weight)
    optimizer.add_param_group({"params": [weight]})


CHANGES: dict[str, Callable[[torch.optim.Optimizer], None]] = {
    "nothing": lambda optimizer: None,
    "a checkpoint": _state_from_a_checkpoint,
    "no state": _a_state_is_dropped,
    "another state": _a_state_is_replaced,
    "rate": _another_rate,
    "memory": _other_memory,
    "layout": _another_layout,
    "order": _weights_in_another_order,
    "a weight more": _a_weight_more,
}


def trained(
    kind: type[torch.optim.Optimizer],
    options: dict[str, Any],
    kinds: list[str],
    steps: list[tuple[str, list[str]]],
) -> Any:
    """Return weights, states and errors after steps, each with a change before it."""
    weights = [nn.Parameter(WEIGHTS[each](seed)) for seed, each in enumerate(kinds)]
    optimizer = kind(weights, **{"lr": 0.01, **copy.deepcopy(options)}, foreach=False)
    optimizer.param_groups[0]["foreach"] = None if kind.__module__ == fused.__name__ else False
    said = []
    for number, (change, gradients) in enumerate(steps):
        for place, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
            drawn = random(*weight.shape, seed=1000 * number + place, dtype=weight.dtype)
            weight.grad = GRADIENTS[gradient](weight.detach(), drawn)
        said.append(outcome(lambda change=change: CHANGES[change](optimizer)))
        said.append(outcome(optimizer.step))
    states = [
        {name: value for name, value in optimizer.state.get(weight, {}).items() if name != "step"}
        for weight in weights
    ]
    return [weight.detach() for weight in weights], states, said


def same(name: str, *case: Any) -> None:
    ours, theirs = (trained(getattr(of, name), *case) for of in (fused, torch.optim))
    assert_same(ours, theirs, name, ROUNDED)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    "name,options",
    [("Adam", {"amsgrad": True}), ("AdamW", {}), ("SGD", {"momentum": 0.9}), ("Adagrad", {})],
)
def test_a_change_between_steps_is_noticed(name: str, options: dict[str, Any], change: str) -> None:
    alike = ["alike"] * 3
    steps = [("nothing", alike)] * 3 + [(change, alike)] + [("nothing", alike)] * 2
    same(name, options, ["fp32", "channels_last", "scalar"], steps)


@pytest.mark.parametrize("gradient", [*GRADIENTS, "given again"])
@pytest.mark.parametrize("name", NAMES)
def test_another_gradient_after_steps_that_were_alike_is_noticed(name: str, gradient: str) -> None:
    last = ["alike"] if gradient == "given again" else [gradient]
    first = ["none"] if gradient == "given again" else ["alike"]
    steps = [("nothing", [*first, "alike"])] * 3 + [("nothing", [*last, "alike"])] * 2
    same(name, {}, ["fp32", "channels_last"], steps)


def test_steps_that_are_alike_do_not_ask_torch_for_its_lists_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    made = torch.optim.AdamW._init_group

    def counted(self: Any, *arguments: Any) -> Any:
        asked.append(self)
        return made(self, *arguments)

    monkeypatch.setattr(torch.optim.AdamW, "_init_group", counted)
    trained(fused.AdamW, {}, ["fp32", "scalar"], [("nothing", ["alike"] * 2)] * 6)
    assert len(asked) == 2  # the first step makes the states


@st.composite
def trainings(draw: st.DrawFn) -> tuple[str, dict[str, Any], list[str], list[tuple[str, Any]]]:
    name = draw(st.sampled_from(NAMES))
    options = draw(st.sampled_from(OPTIONS.get(name, [{}, {"lr_decay": 0.1}])))
    kinds = draw(st.lists(st.sampled_from(list(WEIGHTS)), min_size=1, max_size=3))
    # Most gradients are alike, so that most steps are.
    gradient = st.one_of(st.just("alike"), st.just("alike"), st.sampled_from(list(GRADIENTS)))
    step = st.lists(gradient, min_size=len(kinds), max_size=len(kinds))
    changes = st.one_of(st.just("nothing"), st.sampled_from(list(CHANGES)))
    return (
        name,
        options,
        kinds,
        draw(st.lists(st.tuples(changes, step), min_size=2, max_size=6)),
    )


@pytest.mark.slow
@settings(max_examples=250, deadline=None, derandomize=True)
@given(trainings())
def test_drawn_trainings(case: tuple[str, dict[str, Any], list[str], Any]) -> None:
    name, options, kinds, steps = case
    if options.get("amsgrad"):
        # torch's implementations do not agree on the larger of a number and NaN.
        usual = {"NaN": "alike", "infinite": "alike"}
        steps = [(change, [usual.get(g, g) for g in gradients]) for change, gradients in steps]
        kinds = ["fp32" if kind == "infinite" else kind for kind in kinds]
    same(name, options, kinds, steps)
