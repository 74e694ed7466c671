"""Optimizer-in-backward: steps in parts are the whole step, or are refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from ranks import Ranks
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
    optimizer = kind(weights, **arguments)
    loop = kind(expected, foreach=False, fused=False, **arguments)
    early = EarlySteps(optimizer)
    for step in range(STEPS):
        assert _fused_calls(early, weights, _gradients(step)) == 2
        _whole_step(loop, expected, _gradients(step))
        optimizer.step()  # with nothing left to do
        torch.testing.assert_close(weights, expected, rtol=1e-6, atol=1e-6)
    # A checkpoint holds what the user chose.
    assert optimizer.param_groups[0]["fused"] is None
    early.close()
    later = [weight.detach().clone().requires_grad_() for weight in weights]
    resumed = kind(later, **arguments)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for update, each in ((resumed, later), (loop, expected)):
        _whole_step(update, each, _gradients(STEPS))
    torch.testing.assert_close(later, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "arguments", "dtype"),
    [
        ("AdamW", {"foreach": False}, torch.float32),
        ("SGD", {"fused": False}, torch.float32),
        ("Adam", {"lr": torch.tensor(0.01)}, torch.float32),
        ("RMSprop", {}, torch.float32),  # torch has no fused form
        ("SGD", {"lr": 0.01}, torch.bfloat16),
    ],
    ids=str,
)
def test_the_form_stays_torchs_choice_or_the_users(
    name: str, arguments: dict[str, Any], dtype: torch.dtype
) -> None:
    kind = getattr(torch.optim, name)
    weights, expected = _weights(dtype), _weights(dtype)
    optimizer, same = kind(weights, **arguments), kind(expected, **arguments)
    early = EarlySteps(optimizer)
    for step in range(STEPS):
        assert _fused_calls(early, weights, _gradients(step, dtype)) == 0
        optimizer.step()
        _whole_step(same, expected, _gradients(step, dtype))
    torch.testing.assert_close(weights, expected, rtol=0, atol=0)


def test_momentum_that_only_some_parameters_of_a_bucket_have_yet() -> None:
    weights, expected = _weights(), _weights()
    optimizer, loop = (torch.optim.SGD(each, lr=0.01, momentum=0.9) for each in (weights, expected))
    early = EarlySteps(optimizer)
    for count in (1, 3):
        gradients = _gradients(0)[:count]
        with early.block():
            early.take(weights[:count], gradients)
            early.backward_done()
        optimizer.step()
        _whole_step(loop, expected[:count], gradients)
    torch.testing.assert_close(weights, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "arguments", "values", "uneven"),
    [
        ("SGD", {"momentum": 0.9}, {}, False),
        ("AdamW", {}, {"bucket_mb": 0.001, "bucket_views": True}, False),
        ("RAdam", {"foreach": True}, {"hierarchical": True, "streams": 2}, False),
        ("SGD", {}, {}, True),
    ],
    ids=str,
)
def test_weights_are_those_of_a_step_at_the_end(
    two: Ranks, optimizer: str, arguments: dict, values: dict, uneven: bool
) -> None:
    for found in two.call("early.steps", optimizer, arguments, values, uneven):
        assert found["error"] < 1e-6
        assert found["moved"]  # before optimizer.step() was called
        assert found["late"]  # no longer, once the model has been given other options


@pytest.mark.slow
def test_gradients_of_strided_and_complex_parameters_reach_their_own_elements(two: Ranks) -> None:
    assert max(two.call("early.strided")) < 1e-6


@pytest.mark.slow
def test_steps_of_a_gan_and_of_a_closure_are_torchs(two: Ranks) -> None:
    assert two.call("early.gan") == [True, True]
    assert two.call("early.closure") == [True, True]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("no optimizer", "InputError: step_in_backward() needs to know the optimizer"),
        ("other optimizer", "InputError: none of the optimizer's parameters is one of the model's"),
        ("no step", "InputError: a second step_in_backward() block came before optimizer.step()"),
        ("a forward pass", "InputError: a forward pass of the model came before optimizer.step()"),
        ("accelerate_ddp again", "InputError: accelerate_ddp() came before optimizer.step()"),
        ("two backward passes", "zero_grad() or another backward pass"),
        ("no backward pass", "InputError: no backward pass that averages this model's gradients"),
        ("no_sync", "InputError: no backward pass that averages this model's gradients"),
        ("nested", "InputError: step_in_backward() cannot stand within another such block"),
        ("within a closure", "InputError: step_in_backward() cannot stand within optimizer.step("),
        ("another backward pass", "the gradient of 0.weight has changed since"),
        ("clipping", "has changed since (clipping"),
        ("learning rate", "the optimizer's options (lr, …) have changed since"),
        ("zero_grad", "has changed since (clipping, a GradScaler, zero_grad()"),
        ("weights", "0.weight itself has been changed since"),
        ("closure", "it has a closure"),
    ],
)
def test_a_step_that_is_not_the_optimizers_is_refused(two: Ranks, what: str, message: str) -> None:
    for answer in two.call("early.refused", what):
        assert message in answer


@pytest.mark.slow
def test_after_an_error_in_such_a_backward_pass_the_weights_are_said_to_be_between_two_steps(
    two: Ranks,
) -> None:
    for answer in two.call("early.fails_halfway"):
        assert answer.startswith("RunFailed") and "these weights are between two steps" in answer
