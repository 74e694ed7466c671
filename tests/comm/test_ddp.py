"""A model on two processes stays the user's, and its gradients are averaged by every road."""

from __future__ import annotations

import dataclasses

import pytest
from against_torch.case import Case
from against_torch.run import FAILED, REFUSED, run
from ranks import Ranks

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "loop",
    ["simple", "two_backwards", "output_by_output", "two_calls", "same_graph_twice", "accumulate",
     "freeze", "gradient_penalty", "laid_out_anew"],
)  # fmt: skip
def test_gradients_are_the_mean_of_those_of_the_ranks(two: Ranks, loop: str) -> None:
    case = Case(model="named_tuple_output", loop=loop, launch="two_group_before", epochs=3)
    verdict = run(case, two)
    assert verdict.outcome not in (FAILED, REFUSED), verdict.lines


def test_parts_that_are_put_in_later_start_alike_everywhere_and_are_averaged(two: Ranks) -> None:
    assert two.call("twins.heads_in_turn") == [[True] * 18] * 2


def test_what_several_processes_cannot_train_is_refused_in_one_line(two: Ranks) -> None:
    for said in two.call("twins.refusals"):
        expected = (
            "InputError: the model has lazy parameters",
            "InputError: the model has SyncBatchNorm",
            "InputError: the model is a DistributedDataParallel already",
            "InputError: the gradient of head.",
        )
        for message, beginning in zip(said, expected, strict=True):
            assert message.startswith(beginning) and "\n" not in message


def test_gradients_of_a_rank_alone_are_to_be_had_inside_no_sync(two: Ranks) -> None:
    assert two.call("twins.around_the_model_on_purpose") == [True, True]


def test_training_does_not_go_on_after_a_backward_pass_that_raised(two: Ranks) -> None:
    for said in two.call("twins.after_an_error"):
        assert said.startswith("RunFailed: the last backward pass ended with an error")
        assert "\n" not in said


@pytest.mark.parametrize(
    "change",
    [{"config": "aot"}]
    + [{"loop": loop} for loop in ("simple", "two_calls", "two_backwards", "closure")],
    ids=str,
)
def test_unused_parameters_are_named_and_not_stepped_with_the_option_that_handles_them(
    two: Ranks, change: dict
) -> None:
    """There is one step, which no forward pass follows."""
    case = Case(model="unused", launch="two_group_before", samples=6, epochs=1, **change)
    verdict = run(case, two)
    assert verdict.outcome == REFUSED, verdict.lines
    (said,) = verdict.lines
    assert said.startswith("second.weight (and 1 more) got no gradient in the last backward pass")
    assert "config.comm.find_unused_parameters = True" in said
    if case.loop != "two_calls":  # of which DDP takes only one, where it looks for parameters
        verdict = run(dataclasses.replace(case, comm="find_unused"), two)
        assert verdict.outcome not in (FAILED, REFUSED), verdict.lines


def test_checkpoints_attributes_and_copies_are_those_of_the_users_model(two: Ranks) -> None:
    yes = dict.fromkeys(("checkpoint", "module", "pickled", "averaged", "attributes"), True)
    assert two.call("twins.facts") == [{**yes, "device": "cpu", "copy": (True, True)}] * 2


def test_the_model_inside_may_be_called_on_one_rank_alone(two: Ranks) -> None:
    assert two.call("twins.evaluated_on_rank_0_alone") == [5, 0]
