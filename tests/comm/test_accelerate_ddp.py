"""Gradient averaging other than DDP's, on real processes that pretend to be on several hosts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ranks import Ranks

SHAPES = [(2, 2), (4, 2), (4, 4), (8, 2)]
"""Processes and hosts: 2 × 1, 2 × 2, 4 × 1 and 2 × 4 hosts × processes."""
LOSSLESS = {
    "buckets": {"bucket_mb": 0.001},
    "views": {"bucket_views": True},
    "static graph": {"static_graph": True},
    "streams": {"streams": 3, "bucket_mb": 0.001},
    "hierarchical": {"hierarchical": True},
    "all": {
        "hierarchical": True,
        "streams": 2,
        "bucket_mb": 0.002,
        "bucket_views": True,
        "static_graph": True,
    },
}
"""Static graphs are left to models that have one."""
DYNAMIC = {name: values for name, values in LOSSLESS.items() if not values.get("static_graph")}
WIDE = [64, 300, 50, 10]


@pytest.fixture(
    scope="module",
    params=[
        shape
        if max(shape) <= 4 and shape != (4, 4)
        else pytest.param(shape, marks=pytest.mark.thorough)
        for shape in SHAPES
    ],
    ids=[f"{hosts} hosts x {processes // hosts}" for processes, hosts in SHAPES],
)
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    processes, hosts = request.param
    with Ranks(processes, hosts) as running:
        yield running


@pytest.fixture(scope="module")
def two_by_two() -> Iterator[Ranks]:
    with Ranks(4, 2) as running:
        yield running


pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", LOSSLESS)
@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(widths=st.lists(st.integers(1, 70), min_size=2, max_size=6), bucket_kb=st.integers(2, 40))
def test_lossless_ways_differ_from_ddp_by_the_order_of_additions_only(
    ranks: Ranks, name: str, widths: list[int], bucket_kb: int
) -> None:
    values = {**LOSSLESS[name], "bucket_mb": bucket_kb / 1024}
    for found in ranks.call("averages.gradients", widths, values):
        assert found["worst"] <= 1
        assert found["against_plain"] <= 2
        assert found["same"]


@pytest.mark.parametrize(
    ("wire", "most"),
    [
        ({"wire": "bf16"}, 0.01),
        ({"wire": "fp16"}, 0.002),
        ({"wire": "int8"}, 0.02),
        ({"wire": "int8", "hierarchical": True}, 0.02),
        ({"wire": "int8", "streams": 2, "bucket_mb": 0.01}, 0.02),
    ],
    ids=str,
)
def test_wire_formats_round_as_much_as_they_may(ranks: Ranks, wire: dict, most: float) -> None:
    errors = ranks.call("averages.relative_error", WIDE, wire)
    assert len(set(errors)) == 1  # the same bits everywhere
    assert 1e-7 < errors[0] < most


def test_a_way_leaves_nothing_of_itself_to_the_next(two_by_two: Ranks) -> None:
    """DDP's own way is the baseline of the tuner and the benchmarks.

    After others, too, it is what the user made.
    """
    ways: list[dict] = [
        {},
        {"bucket_views": True, "static_graph": True},
        {},
        {"bucket_views": True, "streams": 2},
        {},
    ]
    for made_with, expected in (
        ({}, [2, 1, 2, 1, 2]),
        ({"gradient_as_bucket_view": True}, [1] * 5),
    ):
        assert two_by_two.call("averages.gradient_memories", made_with, ways) == [expected] * 4


LAYER = 4 * (64 * 64 + 64)


@pytest.mark.parametrize(
    ("values", "sizes"),
    [
        ({"bucket_mb": 1}, [4 * LAYER]),
        ({"bucket_mb": 0.01}, [LAYER] * 4),
    ],
    ids=str,
)
def test_buckets_are_as_large_as_is_asked_for(
    two_by_two: Ranks, values: dict, sizes: list[int]
) -> None:
    assert two_by_two.call("averages.bucket_bytes", [64] * 5, values) == [sizes] * 4


@pytest.mark.parametrize("values", [{}, {"hierarchical": True}], ids=["flat", "hierarchical"])
def test_a_parameter_larger_than_a_bucket_goes_in_pieces_through_all_channels(
    two_by_two: Ranks, values: dict
) -> None:
    """300 × 64 weights are 75 KiB: seven pieces of about 10 KiB, of whole cache lines."""
    for channels in two_by_two.call(
        "averages.piece_bytes", [64, 300], {**values, "streams": 2, "bucket_mb": 10 / 1024}
    ):
        pieces = [size for channel in channels for size in channel]
        assert sum(pieces) == 4 * 300 * (64 + 1) and max(pieces) <= 1.5 * 10 * 1024
        assert all(len(channel) >= 3 for channel in channels)
        # The exceptions are the last of the weights, and the biases.
        assert sum(size % 256 != 0 for size in pieces) <= 2


@pytest.mark.parametrize(("hosts", "graphs"), [(1, 1), (2, 2)])
def test_between_hosts_the_first_gradients_of_a_compiled_model_need_not_wait_for_the_last(
    hosts: int, graphs: int
) -> None:
    """Three layers of 1.4 MB: the last fills DDP's first bucket (1 MiB).

    The others lie in its second bucket.
    """
    with Ranks(2, hosts) as ranks:
        for found in ranks.call("training.compiled", [600] * 4):
            assert found["graphs"] == graphs and found["apart"] < 1e-6


def test_memory_shared_within_a_host_never_has_a_name_that_a_kill_could_leave_behind(
    two_by_two: Ranks,
) -> None:
    for rank, found in enumerate(two_by_two.call("memory.shared", None)):
        host = [rank // 2 * 2, rank // 2 * 2 + 1]
        assert found == {"seen": [host, host], "names": [0, 0]}


def test_where_one_process_cannot_open_it_all_of_its_host_say_so_at_once(two_by_two: Ranks) -> None:
    first, second, *others = two_by_two.call("memory.shared", 1)
    for found in (first, second):
        assert found["message"].startswith("InputError: hierarchical communication needs")
    assert "made to fail" in second["message"] and "made to fail" not in first["message"]
    assert all("seen" in found for found in others)


def test_powersgd_of_full_rank_is_exact_and_of_low_rank_is_not(two_by_two: Ranks) -> None:
    exact, low = (
        two_by_two.call(
            "averages.relative_error", [20, 12, 8], {"wire": "powersgd", "powersgd_rank": rank}
        )[0]
        for rank in (8, 1)
    )
    assert exact < 1e-5
    assert 0.01 < low < 1


@pytest.mark.parametrize("name", DYNAMIC)
def test_unused_parameters(two_by_two: Ranks, name: str) -> None:
    assert max(two_by_two.call("averages.unused_parameters", DYNAMIC[name])) < 1e-6


@pytest.mark.parametrize("name", DYNAMIC)
def test_ranks_with_fewer_batches_stand_by(two_by_two: Ranks, name: str) -> None:
    for plain, accelerated in two_by_two.call("training.uneven_batches", DYNAMIC[name]):
        assert accelerated == pytest.approx(plain, rel=1e-6)


@pytest.mark.parametrize("name", DYNAMIC)
def test_two_models_of_which_a_layer_is_frozen_midway(two_by_two: Ranks, name: str) -> None:
    assert max(two_by_two.call("training.two_models_one_frozen_midway", DYNAMIC[name])) < 1e-6


@pytest.mark.parametrize("name", DYNAMIC)
def test_accumulated_gradients(two_by_two: Ranks, name: str) -> None:
    assert max(two_by_two.call("averages.accumulation", DYNAMIC[name])) < 1e-5


@pytest.mark.parametrize(
    "values",
    [{}, {"bucket_mb": 0.001, "bucket_views": True}, {"hierarchical": True, "streams": 2}],
    ids=str,
)
@pytest.mark.parametrize(
    ("optimizer", "arguments"),
    [
        ("SGD", {"momentum": 0.9}),
        ("AdamW", {}),
        ("AdamW", {"fused": True}),
        ("RAdam", {"foreach": True}),
    ],
    ids=["SGD", "AdamW", "AdamW, fused", "RAdam"],
)
def test_the_optimizers_step_in_the_backward_pass_gives_the_same_weights(
    two_by_two: Ranks, optimizer: str, arguments: dict, values: dict
) -> None:
    for found in two_by_two.call("training.early_steps", optimizer, arguments, values):
        assert found["error"] < 1e-6
        assert found["moved"]  # before optimizer.step() was called
        assert found["late"]  # no longer, once the model has been given other options


def test_the_optimizers_step_in_the_backward_pass_while_ranks_without_batches_stand_by(
    two_by_two: Ranks,
) -> None:
    for found in two_by_two.call("training.early_steps", "SGD", {}, {}, True):
        assert found["error"] < 1e-6 and found["moved"]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"hierarchical": True},
        {"wire": "int8"},
        {"wire": "powersgd"},
        {"streams": 2, "bucket_mb": 0.004},
    ],
    ids=str,
)
def test_a_gradient_that_is_not_a_number_is_reported_on_every_rank(
    two_by_two: Ranks, values: dict
) -> None:
    messages = two_by_two.call("trouble.not_finite", values, 3)
    assert all("on rank 3 of 2.weight" in message for message in messages), messages


@pytest.mark.parametrize(
    "values",
    [{}, {"bucket_views": True, "streams": 2}, {"wire": "int8"}, {"wire": "powersgd"}],
    ids=str,
)
def test_a_step_with_such_a_gradient_can_be_skipped(two_by_two: Ranks, values: dict) -> None:
    found = two_by_two.call("trouble.skipped", values, 3, False)
    # Steps after the first; the third has the NaN.
    assert [each["moved"] for each in found] == [[True, False, True]] * 4
    assert all(each["finite"] for each in found) and len({each["sum"] for each in found}) == 1


def test_a_step_is_skipped_while_a_rank_without_batches_stands_by(two_by_two: Ranks) -> None:
    found = two_by_two.call("trouble.skipped", {}, 3, True)
    assert [each["moved"] for each in found] == [[True]] + [[True, False, True]] * 3
    assert all(each["finite"] for each in found)


@pytest.mark.parametrize(
    "values",
    [
        {"wire": "int8"},
        {"wire": "int8", "hierarchical": True},
        {"wire": "powersgd", "powersgd_rank": 2},
    ],
    ids=str,
)
def test_training_goes_on_from_a_checkpoint_with_what_error_feedback_keeps(
    two_by_two: Ranks, values: dict
) -> None:
    assert two_by_two.call("training.resumed", values) == [[True, False]] * 4


def test_the_import_accelerates_and_can_be_undone(two_by_two: Ranks) -> None:
    assert two_by_two.call("choices.automatic", {"streams": 2}) == [[True, False, True, False]] * 4


@pytest.mark.parametrize(
    ("values", "what", "message"),
    [
        ({}, "plain module", "takes a DistributedDataParallel, and got a Sequential"),
        ({"streams": 2}, "own hook", "it has a communication hook of its own"),
        ({"wire": "powersgd", "streams": 2}, "", "does not go together"),
        ({}, "LBFGS", "a step of LBFGS cannot be divided"),
        ({}, "own optimizer", "a step of Own cannot be divided"),
        ({}, "unused", "together with find_unused_parameters"),
        ({"static_graph": True}, "SGD", "together with static_graph"),
        ({"non_finite": "skip"}, "SGD", "together with non_finite=skip"),
        ({"wire": "int4"}, "", "wire='int4' must be"),
        ({"stream": 2}, "", "did you mean `streams`"),
    ],
)
def test_what_cannot_be_is_refused(
    two_by_two: Ranks, values: dict, what: str, message: str
) -> None:
    for answer in two_by_two.call("trouble.refused", values, what):
        assert answer.startswith("InputError") and message.lower() in answer.lower()


def test_the_tuner_keeps_ddps_own_way_where_the_other_is_slower_and_remembers_it(
    two_by_two: Ranks,
) -> None:
    for at_once, steps in ((None, 60), ("ddp", 3)):
        found = two_by_two.call("choices.tuned", ["slow"], steps)
        assert [(each["at once"], each["chosen"]) for each in found] == [(at_once, "ddp")] * 4
        assert max(each["error"] for each in found) < 1e-5


def test_the_tuner_takes_what_is_faster_on_all_ranks_and_training_is_not_disturbed(
    two_by_two: Ranks,
) -> None:
    found = two_by_two.call("choices.tuned", ["slow", "good"], 90)
    assert [each["chosen"] for each in found] == ["good"] * 4
    assert max(each["error"] for each in found) < 1e-5
