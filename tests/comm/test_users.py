"""User code around a DistributedDataParallel works the same under every way of averaging.

There are two ranks, where means are exact.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ranks import Ranks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    with Ranks(2, 1) as running:
        yield running


def test_hooks_attributes_and_mode_are_the_users_during_all_turns(two: Ranks) -> None:
    for found in two.call("users.hooks"):
        plain, tuned = found["seen"]
        assert found["exact"] and tuned == plain
        assert plain[0]["forward"] == plain[0]["own forward"] == plain[0]["backward"] > 50


@pytest.mark.parametrize("builtin", [False, True], ids=["python", "builtin"])
@pytest.mark.parametrize(
    "when",
    [-1, 0, 5, 14, 50],
    ids=["before", "at once", "in a first turn", "in a hooked turn", "once chosen"],
)
def test_a_communication_hook_of_the_users_is_used_whenever_it_comes(
    two: Ranks, when: int, builtin: bool
) -> None:
    for found in two.call("users.own_hook", when, builtin):
        assert found["exact"]
        assert found["seen"] == [(0 if builtin else 1, True)] * 2


def test_copies_and_pickles_are_those_of_plain_ddp_at_any_time(two: Ranks) -> None:
    assert all(all(found) for found in two.call("users.copies"))


@pytest.mark.parametrize(
    "which",
    [
        "two forwards",
        "accumulation",
        "evaluation",
        "one rank looks at more",
        "one rank looks at more, and all meet",
        "a step fails",
        "a forward pass fails on one rank",
        "frozen",
        "joined",
        "compiled",
    ],
)
def test_habits_of_users_disturb_no_turn(two: Ranks, which: str) -> None:
    assert all(all(found) for found in two.call("users.habits", which))


@pytest.mark.parametrize(
    "how",
    [
        "ignored",
        "static_graph",
        "static graph later",
        "find_unused_parameters",
        "gradient_as_bucket_view",
        "buckets",
        "fused optimizer",
    ],
)
def test_models_that_are_made_otherwise_train_as_plain_ddp(two: Ranks, how: str) -> None:
    assert all(all(found) for found in two.call("odd_models.made_otherwise", how))


def test_tuning_ends_where_a_rank_does_not_come_to_the_same_step(two: Ranks) -> None:
    for found in two.call("users.a_rank_that_does_not_come"):
        assert found == {"exact": True, "chosen": "ddp"}


def test_a_layer_that_is_frozen_while_a_way_begins_is_averaged_once_it_is_unfrozen(
    two: Ranks,
) -> None:
    assert all(all(found) for found in two.call("users.frozen_at_a_rebuild"))


def test_a_reducer_that_was_replaced_does_nothing_any_more(two: Ranks) -> None:
    assert two.call("users.held_reducer") == [True, True]


def test_threads_of_deleted_models_end(two: Ranks) -> None:
    for before, between, after in two.call("users.deleted"):
        assert between >= before + 9 and after <= before


def test_nothing_is_left_of_ways_that_were_replaced(two: Ranks) -> None:
    assert two.call("users.replaced") == [[1, 0]] * 2


LOSSLESS = [
    {"bucket_views": True},
    {"streams": 2},
    {"hierarchical": True},
    {"hierarchical": True, "streams": 2, "bucket_mb": 0.001},
]


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("values", LOSSLESS, ids=str)
def test_lossless_ways_are_exact_for_every_type_and_form_of_parameter(
    two: Ranks, values: dict, sparse: bool
) -> None:
    for apart in two.call("odd_models.odd_parameters", values, sparse):
        assert set(apart.values()) == {0.0}


@pytest.mark.parametrize(("hosts", "processes"), [(2, 2), (2, 4)])
def test_hierarchical_averages_doubles_in_double_precision(hosts: int, processes: int) -> None:
    with Ranks(processes, hosts) as ranks:
        for apart in ranks.call("odd_models.odd_parameters", {"hierarchical": True}, True):
            assert max(apart["doubles"], apart["double_bias"]) < 1e-15
            assert (
                max(value for name, value in apart.items() if name not in ("halves", "brain"))
                < 1e-6
            )
            assert max(apart["halves"], apart["brain"]) < 2e-2


@pytest.mark.parametrize(
    ("wire", "most"),
    [
        ({"wire": "bf16"}, 2**-6),
        ({"wire": "fp16"}, 2**-8),
        ({"wire": "int8"}, 4 / 127),
        ({"wire": "int8", "hierarchical": True}, 4 / 127),
    ],
    ids=str,
)
def test_wire_formats_round_every_type_of_parameter_as_much_as_they_may(
    two: Ranks, wire: dict, most: float
) -> None:
    """Each term is rounded once, and so is the sum.

    The terms are up to about twice as large as the mean.
    """
    for apart in two.call("odd_models.odd_parameters", wire, True):
        single = apart.pop("single")  # int8 rounds it in units of its neighbours' scale
        assert max(apart.values()) <= most and single < 0.5
        assert apart["table.weight"] == 0  # sparse: as it is


def test_powersgd_averages_complex_parameters_and_vectors_as_they_are(two: Ranks) -> None:
    for apart in two.call("odd_models.odd_parameters", {"wire": "powersgd"}, True):
        for name in ("complex", "complex_turned", "double_bias", "single", "table.weight"):
            assert apart[name] == 0
        assert 0 < apart["doubles"] < 2


@pytest.mark.parametrize("values", LOSSLESS, ids=str)
def test_a_sum_may_be_larger_than_the_type_holds_where_the_mean_is_not(
    two: Ranks, values: dict
) -> None:
    assert two.call("odd_models.large_gradients", values) == [True, True]


def test_sparse_gradients_while_ways_take_turns(two: Ranks) -> None:
    assert all(all(found) for found in two.call("odd_models.sparse_while_tuning"))


def test_a_sparse_gradient_that_is_infinite_is_reported(two: Ranks) -> None:
    for answer in two.call("odd_models.sparse_not_finite", 1):
        assert answer.startswith("RunFailed") and "on rank 1 of weight" in answer


def test_ranks_that_ask_for_different_options_are_told_so_at_once(two: Ranks) -> None:
    for answer in two.call("odd_models.different_options"):
        assert (
            answer.startswith("InputError")
            and "streams=1 on rank 0, and streams=2 on rank 1" in answer
        )


@pytest.mark.parametrize("values", [{}, {"streams": 2}, {"bucket_views": True}], ids=str)
def test_unused_parameters_by_the_option(two: Ranks, values: dict) -> None:
    with Ranks(2, 1) as ranks:  # DDP's own error leaves its ranks of no further use
        assert ranks.call("odd_models.unused_by_option", values) == [[True] * 4] * 2


def test_in_a_gan_each_networks_step_moves_that_network_only(two: Ranks) -> None:
    assert two.call("early.gan") == [True, True]


def test_a_step_with_a_closure_is_torchs_where_steps_could_be_taken_in_the_backward_pass(
    two: Ranks,
) -> None:
    assert two.call("early.closure") == [True, True]


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
        (
            "within a closure",
            "InputError: step_in_backward() cannot stand within optimizer.step(closure)",
        ),
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


def test_after_an_error_in_such_a_backward_pass_the_weights_are_said_to_be_between_two_steps(
    two: Ranks,
) -> None:
    for answer in two.call("early.fails_halfway"):
        assert answer.startswith("RunFailed") and "these weights are between two steps" in answer
