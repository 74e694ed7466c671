"""A model on two processes stays the user's, and its gradients are averaged by every road."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from on_ranks import twins
from ranks import Ranks

pytestmark = pytest.mark.slow

NAMES = ["encoder.weight", "encoder.bias", "head.weight", "head.bias", "probe.weight", "probe.bias"]


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    with Ranks(processes=2, hosts=1) as ranks:
        yield ranks


@pytest.mark.parametrize("road", twins.ROADS)
def test_gradients_are_the_mean_of_those_of_the_ranks(two: Ranks, road: str) -> None:
    assert max(two.call("twins.gradients", road)) < 1e-5


def test_a_part_that_is_put_in_later_starts_alike_everywhere_and_is_averaged(two: Ranks) -> None:
    assert max(two.call("twins.replaced_head")) < 1e-5


def test_what_several_processes_cannot_train_is_refused_in_one_line(two: Ranks) -> None:
    for lazy, norm, distributed in two.call("twins.refusals"):
        assert lazy.startswith("InputError: the model has lazy parameters") and "\n" not in lazy
        assert norm.startswith("InputError: the model has SyncBatchNorm") and "\n" not in norm
        assert (
            distributed.startswith("InputError: the model is a DistributedDataParallel already")
            and "\n" not in distributed
        )


def test_gradients_that_come_around_the_model_are_refused(two: Ranks) -> None:
    for said in two.call("twins.around_the_model"):
        assert (
            said.startswith("InputError") and "Call that model itself" in said and "\n" not in said
        )


def test_gradients_of_a_rank_alone_are_to_be_had_inside_no_sync(two: Ranks) -> None:
    assert two.call("twins.around_the_model_on_purpose") == [True, True]


def test_heads_that_replace_one_another_start_alike_on_all_ranks(two: Ranks) -> None:
    assert two.call("twins.heads_in_turn") == [[True] * 6] * 2


def test_training_does_not_go_on_after_a_backward_pass_that_raised(two: Ranks) -> None:
    for said in two.call("twins.after_an_error"):
        assert (
            said.startswith("RunFailed: the last backward pass ended with an error")
            and "\n" not in said
        )


def test_unused_parameters_are_named_with_the_option_that_handles_them(two: Ranks) -> None:
    for training in ("twins.unused", "twins.unused_in_two_backward_passes"):
        for (said,) in two.call(training, False):
            assert said.startswith("InputError: probe.weight (and 1 more) got no gradient")
            assert "config.comm.find_unused_parameters = True" in said and "\n" not in said
        assert two.call(training, True) == [[True, True]] * 2


def test_a_step_on_gradients_that_are_not_averaged_is_refused(two: Ranks) -> None:
    for said, unchanged in two.call("twins.step_on_unaveraged_gradients", False):
        assert (
            said.startswith("InputError: probe.weight (and 1 more) got no gradient") and unchanged
        )
    for said, _ in two.call("twins.step_on_unaveraged_gradients", True):
        assert said.startswith("InputError: probe.weight (and 1 more) got no gradient")


def test_compiled_parameters_that_no_output_depends_on_are_refused_and_not_decayed(
    two: Ranks,
) -> None:
    for said, unchanged in two.call("twins.unused_in_a_compiled_graph", False):
        assert (
            said.startswith("InputError: probe.weight (and 1 more) got no gradient") and unchanged
        )
    assert two.call("twins.unused_in_a_compiled_graph", True) == [[True, True]] * 2


def test_a_step_is_taken_after_two_losses_that_reach_all_parameters(two: Ranks) -> None:
    assert two.call("twins.two_losses_before_a_step") == [True, True]


def test_names_keys_type_attributes_hooks_and_copies_are_those_of_the_users_model(
    two: Ranks,
) -> None:
    for facts in two.call("twins.facts"):
        assert facts == {
            "type": (True, "Net"),
            "keys": NAMES,
            "names": NAMES,
            "checkpoint": NAMES,
            "module": True,
            "device": "cpu",
            "parameters": True,
            "copy": (True, True),
            "pickled": True,
            "averaged": True,
            "hook calls": 1,
            "attributes": True,
            "training": (False, False, True),
        }


def test_the_model_inside_may_be_called_on_one_rank_alone(two: Ranks) -> None:
    assert two.call("twins.evaluated_on_rank_0_alone") == [5, 0]
