"""Optimizer-in-backward: steps in parts are the whole step, or are refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from against_torch.case import Case
from against_torch.run import SAME, run
from ranks import Ranks
from torch import Tensor

from gallery_lib.comm.optimizer_in_backward import EarlySteps
from gallery_lib.optim.adoption import accelerate_optimizer

ARGUMENTS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "nesterov": True},
    "AdamW": {"amsgrad": True, "weight_decay": 0.1},
}
STEPS = 3
SHAPES = ((7, 5), (11,), (3, 4, 2, 2))


def _drawn(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


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


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD", "Adagrad", "RMSprop", "RAdam"])
def test_parts_of_an_accelerated_optimizer_are_its_whole_step(name: str) -> None:
    kind, arguments = getattr(torch.optim, name), {"lr": 0.01, **ARGUMENTS.get(name, {})}
    weights, expected = ([p.requires_grad_() for p in _drawn(0)] for _ in range(2))
    optimizer, whole = kind(weights, **arguments), kind(expected, **arguments)
    for each in (optimizer, whole):
        accelerate_optimizer(each)
    early = EarlySteps(optimizer)
    for step in range(STEPS):
        _in_two_parts(early, weights, _drawn(1 + step))
        optimizer.step()
        _whole_step(whole, expected, _drawn(1 + step))
    torch.testing.assert_close(weights, expected, rtol=1e-6, atol=1e-7)


EARLY = Case(
    launch="two_group_before", loader="distributed_sampler", call="early", batch_size=2, samples=16
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"optimizer": "sgd_groups", "loop": "accumulate", "scheduler": "step"},
        {"optimizer": "adamw_groups", "comm": "together"},
        {"optimizer": "radam", "comm": "streams", "loop": "rate_by_hand"},
        {"optimizer": "momentum", "loop": "gan"},
        {"model": "several_dtypes", "loop": "save_and_load"},
    ],
    ids=str,
)
def test_weights_are_those_of_a_step_at_the_end(two: Ranks, change: dict) -> None:
    verdict = run(dataclasses.replace(EARLY, **change), two)
    assert verdict.outcome == SAME, verdict.lines


@pytest.mark.slow
def test_weights_move_within_the_block_and_no_longer_with_other_options(two: Ranks) -> None:
    assert two.call("early.moved") == [[True, False, False, True]] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("no optimizer", "InputError: step_in_backward() needs to know the optimizer"),
        ("other optimizer", "none of the optimizer's parameters is one of the model's"),
        ("two backward passes", "two backward passes ran within step_in_backward()"),
        ("no backward pass", "InputError: no backward pass that averages this model's gradients"),
        ("no_sync", "InputError: no backward pass that averages this model's gradients"),
        ("nested", "InputError: step_in_backward() cannot stand within another such block"),
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
