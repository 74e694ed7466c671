"""User code around a DistributedDataParallel works the same under every way of averaging.

There are two ranks, where means are exact.
"""

from __future__ import annotations

import pytest
from ranks import Ranks

pytestmark = pytest.mark.slow


def test_hooks_attributes_and_mode_are_the_users_during_all_turns(two: Ranks) -> None:
    for found in two.call("users.hooks"):
        plain, tuned = found["seen"]
        assert found["exact"] and tuned == plain
        assert plain[0]["forward"] == plain[0]["own forward"] == plain[0]["backward"] > 50


@pytest.mark.parametrize(
    ("when", "builtin"),
    [(-1, False), (5, True), (14, False), (14, True), (50, False)],
    ids=["before", "in a first turn", "in a hooked turn", "builtin", "once chosen"],
)
def test_a_communication_hook_of_the_users_is_used_whenever_it_comes(
    two: Ranks, when: int, builtin: bool
) -> None:
    for found in two.call("users.own_hook", when, builtin):
        assert found["exact"]
        assert found["seen"] == [(0 if builtin else 1, True)] * 2


def test_copies_and_pickles_are_those_of_plain_ddp_at_any_time(two: Ranks) -> None:
    assert all(two.call("users.copies"))


@pytest.mark.parametrize(
    "which", ["in turn", "one rank looks at more, and all meet", "joined", "compiled"]
)
def test_habits_of_users_disturb_no_turn(two: Ranks, which: str) -> None:
    assert two.call("users.habits", which) == [{"wrong": [], "chosen": True}] * 2


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
    assert all(two.call("odd_models.made_otherwise", how))


def test_tuning_ends_where_a_rank_does_not_come_to_the_same_step(two: Ranks) -> None:
    for found in two.call("users.a_rank_that_does_not_come"):
        assert found == {"exact": True, "chosen": "ddp"}


def test_a_layer_that_is_frozen_while_a_way_begins_is_averaged_once_it_is_unfrozen(
    two: Ranks,
) -> None:
    assert all(two.call("users.frozen_at_a_rebuild"))


def test_nothing_is_left_of_ways_and_models_that_have_gone(two: Ranks) -> None:
    assert two.call("users.replaced") == [[1, 0]] * 2
    for before, between, after in two.call("users.deleted"):
        assert between >= before + 9 and after <= before


LOSSLESS = [
    {"bucket_views": True},
    {"streams": 2},
    {"hierarchical": True, "streams": 2, "bucket_mb": 0.001},
]


@pytest.mark.parametrize("values", LOSSLESS, ids=str)
def test_lossless_ways_are_exact_for_every_type_and_form_of_parameter(
    two: Ranks, values: dict
) -> None:
    for apart in two.call("odd_models.odd_parameters", values):
        assert set(apart.values()) == {0.0}


def test_hierarchical_averages_doubles_in_double_precision() -> None:
    with Ranks(processes=4, hosts=2) as ranks:
        for apart in ranks.call("odd_models.odd_parameters", {"hierarchical": True}):
            rounded = [apart.pop("halves"), apart.pop("brain")]
            assert max(apart["doubles"], apart["double_bias"]) < 1e-15
            assert max(apart.values()) < 1e-6 and max(rounded) < 2e-2


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
    for apart in two.call("odd_models.odd_parameters", wire):
        single = apart.pop("single")  # int8 rounds it in units of its neighbours' scale
        assert max(apart.values()) <= most and single < 0.5
        assert apart["table.weight"] == 0  # sparse: as it is


@pytest.mark.parametrize("values", LOSSLESS, ids=str)
def test_a_sum_may_be_larger_than_the_type_holds_where_the_mean_is_not(
    two: Ranks, values: dict
) -> None:
    assert two.call("odd_models.large_gradients", values) == [True, True]


def test_sparse_gradients_are_averaged_in_all_turns_and_reported_where_infinite(two: Ranks) -> None:
    assert two.call("odd_models.sparse_while_tuning") == [True, True]
    for answer in two.call("odd_models.sparse_not_finite", 1):
        assert answer.startswith("RunFailed") and "on rank 1 of weight" in answer


def test_unused_parameters_by_the_option() -> None:
    with Ranks(2, 1) as ranks:  # DDP's own error leaves its ranks of no further use
        values = {"streams": 2, "bucket_views": True}
        assert ranks.call("odd_models.unused_by_option", values) == [[True] * 4] * 2
