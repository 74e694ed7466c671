"""Gradient averaging other than DDP's, on real processes that pretend to be on several hosts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from against_torch.case import Case
from against_torch.run import ROUNDED, SAME, run
from ranks import Ranks

CASE = Case(
    model="wide",
    comm="together",
    launch="four_group_before",
    loader="distributed_sampler",
    call="accelerate_ddp",
    batch_size=2,
    samples=16,
)


@pytest.fixture(
    scope="module",
    params=[2, pytest.param(4, marks=pytest.mark.thorough)],
    ids="four processes on {} hosts".format,
)
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    if request.param == 2:
        yield request.getfixturevalue("two_by_two")
        return
    with Ranks(4, request.param) as running:
        yield running


pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "change",
    [
        *({"comm": comm} for comm in ("small_buckets", "bucket_views", "streams", "hierarchical")),
        *({"model": model} for model in ("double", "bfloat16", "convolution")),
        *({"loop": loop} for loop in ("accumulate", "two_losses")),
        {"model": "unused", "call": "find_unused"},
    ],
    ids=str,
)
def test_lossless_ways_differ_from_plain_pytorch_by_the_order_of_additions_only(
    ranks: Ranks, change: dict
) -> None:
    """And all ranks have the same bits."""
    verdict = run(dataclasses.replace(CASE, **change), ranks)
    assert verdict.outcome in (SAME, ROUNDED), verdict.lines


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
    errors = ranks.call("ways.relative_error", [64, 300, 50, 10], wire)
    assert len(set(errors)) == 1  # the same bits everywhere
    assert 1e-7 < errors[0] < most


def test_a_way_leaves_nothing_of_itself_to_the_next(two_by_two: Ranks) -> None:
    """DDP's own way is the baseline of the tuner and the benchmarks."""
    ways = [{}, {"bucket_views": True}]
    for made_with, expected in (({}, [2, 1, 2]), ({"gradient_as_bucket_view": True}, [1] * 3)):
        assert two_by_two.call("ways.gradient_memories", made_with, ways) == [expected] * 4


def test_buckets_are_as_large_as_is_asked_for(two_by_two: Ranks) -> None:
    layer = 4 * (64 * 64 + 64)
    for megabytes, sizes in ((1, [4 * layer]), (0.01, [layer] * 4)):
        assert two_by_two.call("ways.buckets", {"bucket_mb": megabytes}) == [sizes] * 4


@pytest.mark.parametrize(("hosts", "graphs"), [(1, 1), (2, 2)])
def test_between_hosts_the_first_gradients_of_a_compiled_model_need_not_wait_for_the_last(
    hosts: int, graphs: int
) -> None:
    """Three layers of 1.4 MB: the last fills DDP's first bucket (1 MiB)."""
    with Ranks(2, hosts) as ranks:
        for found in ranks.call("ways.compiled", [600] * 4):
            assert found["graphs"] == graphs and found["apart"] < 1e-6


def test_memory_shared_within_a_host_has_no_name_that_a_kill_could_leave_behind(
    two_by_two: Ranks,
) -> None:
    for rank, found in enumerate(two_by_two.call("ways.shared_memory", None)):
        host = [rank // 2 * 2, rank // 2 * 2 + 1]
        assert found == {"seen": [host, host], "names": [0, 0]}
    # Where one process cannot open it, all of its host say so at once.
    first, second, *others = two_by_two.call("ways.shared_memory", 1)
    for found in (first, second):
        assert found["message"].startswith("InputError: hierarchical communication needs")
    assert "made to fail" in second["message"] and all("seen" in found for found in others)


@pytest.mark.parametrize(
    "values", [{"wire": "int8"}, {"wire": "int8", "hierarchical": True}], ids=str
)
def test_training_goes_on_from_a_checkpoint_with_what_error_feedback_keeps(
    two_by_two: Ranks, values: dict
) -> None:
    assert two_by_two.call("ways.resumed", values) == [[True, False]] * 4


@pytest.mark.parametrize(
    ("values", "what", "message"),
    [
        ({}, "plain module", "takes a DistributedDataParallel, and got a Sequential"),
        ({"streams": 2}, "own hook", "it has a communication hook of its own"),
        ({"streams": 2}, "sparse", "it has sparse gradients"),
        ({}, "LBFGS", "a step of LBFGS cannot be divided"),
        ({}, "own optimizer", "a step of Own cannot be divided"),
        ({}, "unused", "together with find_unused_parameters"),
        ({}, "static", "together with static_graph"),
        ({}, "complex", "of complex parameters, and of those that are not contiguous"),
        ({"wire": "int4"}, "", "wire='int4' must be"),
        ({}, "different options", "streams=1 on rank 0, and streams=2 on rank 1"),
    ],
)
def test_what_cannot_be_is_refused(
    two_by_two: Ranks, values: dict, what: str, message: str
) -> None:
    for answer in two_by_two.call("ways.refused", values, what):
        assert answer.startswith("InputError") and message.lower() in answer.lower()


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("values", [{"bucket_views": True, "bucket_mb": 0.001}, {}], ids=str)
def test_ranks_may_have_different_numbers_of_batches(
    two_by_two: Ranks, values: dict, early: bool
) -> None:
    assert max(two_by_two.call("ways.uneven_batches", values, early)) < 1e-6


@pytest.mark.parametrize(("kinds", "steps"), [(["slow"], 60), (["slow", "good"], 90)])
def test_the_tuner_takes_what_is_faster_on_all_ranks_and_training_is_not_disturbed(
    two_by_two: Ranks, kinds: list[str], steps: int
) -> None:
    found = two_by_two.call("ways.tuned", kinds, steps)
    assert [each["chosen"] for each in found] == ["good" if "good" in kinds else "ddp"] * 4
    assert max(each["error"] for each in found) < 1e-5


# Optimizer-in-backward: steps in parts are the whole step, or are refused.
EARLY = Case(
    launch="two_group_before", loader="distributed_sampler", call="early", batch_size=2, samples=16
)


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


def test_weights_move_within_the_block_and_no_longer_with_other_options(two: Ranks) -> None:
    assert two.call("early.moved") == [[True, False, False, True]] * 2


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
        ("fails halfway", "these weights are between two steps"),
    ],
)
def test_a_step_that_is_not_the_optimizers_is_refused(two: Ranks, what: str, message: str) -> None:
    for answer in two.call("early.refused", what):
        assert message in answer
