"""Optimizer-in-backward: steps in parts are the whole step, or are refused."""

from __future__ import annotations

import dataclasses

import pytest
from against_torch.case import Case
from against_torch.run import ROUNDED, SAME, run
from ranks import Ranks

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
        *(
            {"call": "early_one_pass", "optimizer": name}
            for name in ("adam", "amsgrad", "adamw", "momentum", "rmsprop", "radam")
        ),
    ],
    ids=str,
)
def test_weights_are_those_of_a_step_at_the_end(two: Ranks, change: dict) -> None:
    verdict = run(dataclasses.replace(EARLY, **change), two)
    assert verdict.outcome in (SAME, ROUNDED)[: 1 + ("call" in change)], verdict.lines


@pytest.mark.slow
def test_weights_move_within_the_block_and_no_longer_with_other_options(two: Ranks) -> None:
    assert two.call("early.moved") == [[True, False, False, True]] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("no optimizer", "InputError: step_in_backward() needs to know the optimizer"),
        ("other optimizer", "none of the optimizer's parameters is one of the model's"),
        ("clipping", "RunFailed: a gradient was changed after step_in_backward()"),
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
