"""Optimizer-in-backward: steps in parts, with states that the other forms go on with.

On the CPU torch's fused form is used where nobody chose one.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from gallery_lib.comm.optimizer_in_backward import EarlySteps
from gallery_lib.optim.adoption import accelerate_optimizer

FUSED = ["Adam", "AdamW", "SGD", "Adagrad"]
ARGUMENTS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "nesterov": True},
    "AdamW": {"amsgrad": True, "weight_decay": 0.1},
}
STEPS = 3


def _weights(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(shape, generator=generator).to(dtype).requires_grad_()
        for shape in ((7, 5), (11,), (3, 4, 2, 2))
    ]


def _gradients(step: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1 + step)
    return [torch.randn(weight.shape, generator=generator).to(dtype) for weight in _weights()]


def _whole_step(
    optimizer: torch.optim.Optimizer, weights: list[Tensor], gradients: list[Tensor]
) -> None:
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = gradient
    optimizer.step()
    optimizer.zero_grad()


def _in_two_parts(early: EarlySteps, weights: list[Tensor], gradients: list[Tensor]) -> None:
    with early.block():
        early.take(weights[1:], gradients[1:])
        early.take(weights[:1], gradients[:1])
        early.backward_done()


def _fused_calls(early: EarlySteps, weights: list[Tensor], gradients: list[Tensor]) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        _in_two_parts(early, weights, gradients)
    return sum(
        event.count for event in profile.key_averages() if event.key.startswith("aten::_fused_")
    )


@pytest.mark.parametrize("name", [*FUSED, "RMSprop", "RAdam"])
def test_parts_of_an_accelerated_optimizer_are_its_whole_step(name: str) -> None:
    kind, arguments = getattr(torch.optim, name), {"lr": 0.01, **ARGUMENTS.get(name, {})}
    weights, expected = _weights(), _weights()
    optimizer, whole = kind(weights, **arguments), kind(expected, **arguments)
    for each in (optimizer, whole):
        accelerate_optimizer(each)
    early = EarlySteps(optimizer)
    for step in range(STEPS):
        _in_two_parts(early, weights, _gradients(step))
        optimizer.step()
        _whole_step(whole, expected, _gradients(step))
    torch.testing.assert_close(weights, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", FUSED)
def test_parts_are_fused_and_the_state_is_what_a_loop_over_parameters_goes_on_with(
    name: str,
) -> None:
    kind, arguments = getattr(torch.optim, name), {"lr": 0.01, **ARGUMENTS.get(name, {})}
    weights, expected = _weights(), _weights()
    optimizer, loop = (
        kind(weights, **arguments),
        kind(expected, foreach=False, fused=False, **arguments),
    )
    early = EarlySteps(optimizer)
    for step in range(STEPS):
        assert _fused_calls(early, weights, _gradients(step)) == 2
        _whole_step(loop, expected, _gradients(step))
        optimizer.step()  # with nothing left to do
        torch.testing.assert_close(weights, expected, rtol=1e-6, atol=1e-6)
    # A checkpoint holds what the user chose.
    assert optimizer.param_groups[0]["fused"] is None
    early.close()
    later, kept = _weights(), copy.deepcopy(optimizer.state_dict())
    with torch.no_grad():
        for there, weight in zip(later, weights, strict=True):
            there.copy_(weight)
    resumed = kind(later, **arguments)
    resumed.load_state_dict(kept)
    for update, each in ((resumed, later), (loop, expected)):
        _whole_step(update, each, _gradients(STEPS))
    torch.testing.assert_close(later, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("AdamW", {"foreach": False}, "chosen"),
        ("AdamW", {"foreach": True}, "chosen"),
        ("SGD", {"fused": False}, "chosen"),
        ("Adam", {"lr": torch.tensor(0.01)}, "a tensor as learning rate"),
        ("RMSprop", {}, "torch has no fused form"),
    ],
    ids=lambda value: str(value),
)
def test_the_form_stays_torchs_choice_or_the_users(
    name: str, arguments: dict[str, Any], why: str
) -> None:
    kind = getattr(torch.optim, name)
    weights, expected = _weights(), _weights()
    optimizer, same = kind(weights, **arguments), kind(expected, **arguments)
    early = EarlySteps(optimizer)
    for step in range(STEPS):
        assert _fused_calls(early, weights, _gradients(step)) == 0, why
        optimizer.step()
        _whole_step(same, expected, _gradients(step))
    torch.testing.assert_close(weights, expected, rtol=0, atol=0)


def test_weights_of_16_bits_are_left_to_torchs_choice() -> None:
    weights = _weights(torch.bfloat16)
    assert (
        _fused_calls(
            EarlySteps(torch.optim.SGD(weights, lr=0.01)), weights, _gradients(0, torch.bfloat16)
        )
        == 0
    )


def test_momentum_that_only_some_parameters_of_a_bucket_have_yet() -> None:
    weights, expected = _weights(), _weights()
    optimizer, loop = (torch.optim.SGD(each, lr=0.01, momentum=0.9) for each in (weights, expected))
    early = EarlySteps(optimizer)
    gradients = _gradients(0)
    with early.block():
        early.take(weights[:1], gradients[:1])
        early.backward_done()
    optimizer.step()
    expected[0].grad = gradients[0]
    loop.step()
    with early.block():
        early.take(weights, gradients)
        early.backward_done()
    optimizer.step()
    _whole_step(loop, expected, gradients)
    torch.testing.assert_close(weights, expected, rtol=1e-6, atol=1e-6)
