"""User code around a DistributedDataParallel works the same under every way of averaging.

There are two ranks, where means are exact.
"""

from __future__ import annotations

import dataclasses

import pytest
from against_torch.case import Case
from against_torch.run import REFUSED, SAME, run
from ranks import Ranks

pytestmark = pytest.mark.slow

USERS = Case(
    launch="two_group_before", loader="distributed_sampler", call="accelerate_ddp", batch_size=2
)
TURNS = dataclasses.replace(USERS, comm="turns", samples=16, epochs=17)


@pytest.mark.parametrize(
    "change",
    [
        *({"loop": loop} for loop in ("accumulate", "two_losses", "evaluate", "hooks_after")),
        *({"loop": loop} for loop in ("rank_0_runs_more", "frozen_for_a_moment", "save_and_load")),
        *({"model": model} for model in ("hooks", "compiled_before", "buffers", "shared")),
        *({"call": call} for call in ("static_graph", "find_unused", "own_views", "own_buckets")),
    ],
    ids=str,
)
def test_trainings_are_those_of_plain_ddp_while_ways_take_turns(two: Ranks, change: dict) -> None:
    verdict = run(dataclasses.replace(TURNS, **change), two)
    assert verdict.outcome == SAME, verdict.lines


@pytest.mark.parametrize("comm", ["bucket_views", "streams", "together"])
@pytest.mark.parametrize(
    "model",
    ["complex", "double", "several_dtypes", "bfloat16", "zero_size", "wide", "scalar", "shared",
     "tied", "transposed_weight", "channels_last", "frozen", "sparse"],
)  # fmt: skip
def test_lossless_ways_are_exact_for_every_type_and_form_of_parameter(
    two: Ranks, model: str, comm: str
) -> None:
    verdict = run(dataclasses.replace(USERS, model=model, comm=comm), two)
    sparse = model == "sparse" and comm != "bucket_views"
    assert verdict.outcome == (REFUSED if sparse else SAME), verdict.lines


@pytest.mark.parametrize(("when", "refused"), [(0, False), (5, False), (10, True)])
def test_a_communication_hook_of_the_users_wins_until_another_way_has_one(
    two: Ranks, when: int, refused: bool
) -> None:
    for found in two.call("ways.own_hook", when):
        plain, tuned = found["said"]
        assert plain == "nothing was raised" and found["choice"] == "ddp"
        assert ("can only be called once" in tuned) is refused
        assert refused or found["exact"]


def test_copies_and_pickles_are_those_of_plain_ddp_at_any_time(two: Ranks) -> None:
    assert all(two.call("ways.copies"))


def test_a_layer_that_is_frozen_while_a_way_begins_is_averaged_once_it_is_unfrozen(
    two: Ranks,
) -> None:
    assert all(two.call("ways.frozen_at_a_rebuild"))


def test_nothing_is_left_of_ways_and_models_that_have_gone(two: Ranks) -> None:
    assert two.call("ways.replaced") == [[1, 0]] * 2
    for before, between, after in two.call("ways.deleted"):
        assert between >= before + 9 and after <= before


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
    for apart in two.call("ways.odd_parameters", wire):
        single = apart.pop("single")  # int8 rounds it in units of its neighbours' scale
        assert max(apart.values()) <= most and single < 0.5


@pytest.mark.parametrize(
    "values",
    [
        {"bucket_views": True},
        {"streams": 2},
        {"hierarchical": True, "streams": 2, "bucket_mb": 0.001},
    ],
    ids=str,
)
def test_a_sum_may_be_larger_than_the_type_holds_where_the_mean_is_not(
    two: Ranks, values: dict
) -> None:
    assert two.call("ways.large_gradients", values) == [True, True]


@pytest.mark.parametrize("model", ["unused", "branches"])
def test_unused_parameters_by_the_option(two: Ranks, model: str) -> None:
    verdict = run(dataclasses.replace(USERS, model=model, comm="find_unused"), two)
    assert verdict.outcome == SAME, verdict.lines


def test_a_rank_alone_averages_and_rounds_nothing() -> None:
    with Ranks(1, 1) as alone:
        for comm in ("together", "bf16", "int8"):
            case = dataclasses.replace(USERS, launch="one_group_before", comm=comm)
            verdict = run(case, alone)
            assert verdict.outcome == SAME, verdict.lines
