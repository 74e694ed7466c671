"""Over real ranks a loader yields each of its samples once, or all ranks refuse it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from ranks import Ranks

pytestmark = pytest.mark.slow

SAMPLES = 20


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    with Ranks(processes=2, hosts=1) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def three() -> Iterator[Ranks]:
    with Ranks(processes=3, hosts=1) as ranks:
        yield ranks


def flat(batches: list[Any]) -> list[Any]:
    return [item for batch in batches for item in (batch if isinstance(batch, list) else [batch])]


def dealt(order: list[Any], rank: int, ranks: int = 2) -> list[Any]:
    return order[rank::ranks]


def of_ranks(ranks: Ranks, *arguments: Any) -> list[dict[str, Any]]:
    return ranks.call("loaders.batches", *arguments)


@pytest.mark.parametrize(
    "kind", ["sequential", "no length", "data without length", "list", "stream"]
)
def test_ranks_divide_the_order_of_plain_pytorch(two: Ranks, kind: str) -> None:
    found = of_ranks(two, kind, 2)
    expected = two.call("loaders.plain", kind, 2)[0]
    assert [answer["error"] for answer in found] == ["", ""] and found[0]["said"] == []
    for number, batches in enumerate(expected):
        for rank in range(2):
            assert flat(found[rank]["passes"][number]) == dealt(flat(batches), rank)


PERMUTED = {
    "shuffled": range(SAMPLES),
    "shuffled, generator": range(SAMPLES),
    "subset": range(4, 16),
    "Python's random": range(SAMPLES),
    "NumPy's random": range(SAMPLES),
    "own generators": range(SAMPLES),
    "random batches": range(SAMPLES),
    "random batches, no collation": range(SAMPLES),
}


@pytest.mark.parametrize("kind", PERMUTED)
def test_ranks_with_other_seeds_divide_one_order_anew_after_each_training_step(
    two: Ranks, kind: str
) -> None:
    (one, _), (other, _) = two.call("loaders.trained", kind, "steps")
    for first, second in zip(one, other, strict=True):
        assert sorted(flat(first) + flat(second)) == list(PERMUTED[kind])
    assert one[0] != one[1] and other[0] != other[1]


@pytest.mark.parametrize(("kind", "samples"), [("with replacement", 36), ("weighted", 24)])
def test_drawn_samples_are_divided(two: Ranks, kind: str, samples: int) -> None:
    found = of_ranks(two, kind)
    assert [len(flat(answer["passes"][0])) for answer in found] == [samples // 2] * 2


@pytest.mark.parametrize("alone", ["peek", "whole pass"])
@pytest.mark.parametrize("kind", ["shuffled", "stream", "stream by rank", "iterable by rank"])
def test_what_rank_0_reads_alone_takes_nothing_from_the_training(
    two: Ranks, kind: str, alone: str
) -> None:
    (one, _), (other, _) = two.call("loaders.trained", kind, "steps", alone)
    for first, second in zip(one, other, strict=True):
        assert sorted(flat(first) + flat(second)) == list(range(SAMPLES))


@pytest.mark.parametrize("loop", ["accumulate", "thread", "reader", "validate"])
@pytest.mark.parametrize(
    "kind", ["shuffled", "stream", "stream by rank", "iterable by rank", "range by rank"]
)
def test_loops_that_average_nothing_between_batches_end_on_every_rank(
    two: Ranks, kind: str, loop: str
) -> None:
    (one, _), (other, _) = two.call("loaders.trained", kind, loop)
    for first, second in zip(one, other, strict=True):
        assert sorted(flat(first) + flat(second)) == list(range(SAMPLES))


def test_a_validation_ends_with_each_ranks_own_batches(two: Ranks) -> None:
    (one, _), (other, said) = two.call("loaders.trained", "very uneven stream by rank", "validate")
    assert [flat(batches) for batches in one] == [list(range(15))] * 2
    assert [flat(batches) for batches in other] == [list(range(100, 106))] * 2
    assert not any("run out" in line for line in said)


@pytest.mark.parametrize("kind", ["stream", "stream by rank", "iterable", "iterable by rank"])
def test_a_buffer_that_is_filled_again_loses_no_sample(two: Ranks, kind: str) -> None:
    (one, _), (other, _) = two.call("loaders.trained", f"refilled {kind}", "steps")
    for first, second in zip(one, other, strict=True):
        assert sorted(flat(first) + flat(second)) == list(range(SAMPLES))


def test_what_worker_init_fn_sets_on_a_stream_is_read(two: Ranks) -> None:
    found = of_ranks(two, "stream of worker_init_fn", 2)
    for number in range(2):
        seen = flat(found[0]["passes"][number]) + flat(found[1]["passes"][number])
        assert sorted(seen) == list(range(SAMPLES))


def test_changes_at_samplers_count(two: Ranks) -> None:
    one, other = two.call("loaders.changed_later")
    assert (one["larger"], other["larger"]) == (
        ([[0, 2, 4, 6, 8], [10, 12, 14, 16, 18]], 2),
        ([[1, 3, 5, 7, 9], [11, 13, 15, 17, 19]], 2),
    )
    assert one["without_tail"] == ([[0, 2, 4], [6, 8, 10], [12, 14, 16]], 3)
    assert (one["others"], other["others"]) == (([[0, 2]], 1), ([[1, 3]], 1))
    assert len(flat(one["fewer"][0])) == len(flat(other["fewer"][0])) == 3
    assert "new sampler (DistributedSampler) divides the data by rank" in one["of_ranks"]


@pytest.mark.parametrize("kind", ["stream of batches", "iterable"])
def test_batches_that_come_as_such_are_dealt_whole(two: Ranks, kind: str) -> None:
    found = of_ranks(two, kind, 2)
    expected = two.call("loaders.plain", kind, 2)[0]
    for number, batches in enumerate(expected):
        assert [answer["passes"][number] for answer in found] == [
            dealt(batches, 0),
            dealt(batches, 1),
        ]


@pytest.mark.parametrize("kind", ["endless", "endless with length"])
def test_an_endless_sampler_streams_in_one_order(two: Ranks, kind: str) -> None:
    found = of_ranks(two, kind, 1, 1500)  # more than are read ahead first
    one, other = (flat(answer["passes"][0]) for answer in found)
    assert len(one) == len(other) == 3000
    rounds = [number for pair in zip(one, other, strict=True) for number in pair]
    for start in range(0, 6000, SAMPLES):
        assert sorted(rounds[start : start + SAMPLES]) == list(range(SAMPLES))


def test_an_endless_stream_goes_on(two: Ranks) -> None:
    found = of_ranks(two, "endless stream", 1, 40)
    assert [flat(answer["passes"][0]) for answer in found] == [
        list(range(0, 160, 2)),
        list(range(1, 160, 2)),
    ]


DIVIDED: dict[str, list[int]] = {
    "DistributedSampler": list(range(SAMPLES)),
    "DistributedSampler inside": list(range(SAMPLES)),
    "by rank": list(range(SAMPLES)),
    "range by rank": list(range(SAMPLES)),
    "subset by rank": list(range(SAMPLES)),
    "Subset by rank": list(range(SAMPLES)),
    "list of each rank": list(range(SAMPLES)),
    "stream by rank": list(range(SAMPLES)),
    "iterable by rank": list(range(SAMPLES)),
    "uneven stream by rank": list(range(11)),
    "long stream by rank": list(range(11)),
    "padded by rank": [0, *range(19)],
}


@pytest.mark.parametrize("kind", DIVIDED)
def test_what_is_divided_already_loses_nothing(two: Ranks, kind: str) -> None:
    found = of_ranks(two, kind, 2)
    assert [answer["error"] for answer in found] == ["", ""]
    for number in range(2):
        seen = flat(found[0]["passes"][number]) + flat(found[1]["passes"][number])
        assert sorted(seen) == DIVIDED[kind]
    if kind.startswith("DistributedSampler"):
        assert not found[0]["said"] and not found[1]["said"]
        return
    (said,) = found[0]["said"]
    assert "config.loader.shard = 'always' divides it" in said and "\n" not in said
    assert ("lengths differ (6, 5)" in said) is (kind == "long stream by rank")
    assert not found[1]["said"]


def test_a_stream_that_can_be_read_once_and_divides_itself_loses_nothing(two: Ranks) -> None:
    found = of_ranks(two, "stream once", 2)
    assert sorted(flat(found[0]["passes"][0]) + flat(found[1]["passes"][0])) == list(range(SAMPLES))
    assert [answer["passes"][1] for answer in found] == [[], []]  # as in plain PyTorch


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize(
    "kind",
    ["stream", "stream by rank", "uneven stream by rank", "halved stream by rank", "shuffled"],
)
def test_the_same_with_worker_processes(two: Ranks, kind: str, persistent: bool) -> None:
    found = of_ranks_with(two, kind, 2, num_workers=2, persistent_workers=persistent)
    assert [answer["error"] for answer in found] == ["", ""]
    scale = 2 if "halved" in kind else 1
    for number in range(2):
        seen = flat(found[0]["passes"][number]) + flat(found[1]["passes"][number])
        assert sorted(scale * item for item in seen) == list(
            range(11 if "uneven" in kind else SAMPLES)
        )
    assert len(found[0]["said"]) == int("by rank" in kind)


def of_ranks_with(ranks: Ranks, kind: str, passes: int, **options: Any) -> list[dict[str, Any]]:
    return ranks.call("loaders.batches_with", kind, passes, options)


def test_a_rank_that_runs_out_in_a_training_repeats_its_first_batch(two: Ranks) -> None:
    (one, _), (other, said) = two.call("loaders.trained", "very uneven stream by rank", "steps")
    assert [sorted(flat(batches)) for batches in one] == [list(range(15))] * 2
    for batches in other:
        assert batches == [[100, 101], [102, 103], [104, 105], *[[100, 101]] * 5]
    assert sum("rank 1 has run out of batches after 3" in line for line in said) == 2


def test_a_rank_without_any_batch_of_its_own_is_refused_on_all_ranks(two: Ranks) -> None:
    for answer in of_ranks(two, "stream on rank 0 alone"):
        assert "the stream (Stream) has nothing at all for rank 1" in answer["error"]


@pytest.mark.parametrize(
    "options",
    [
        {"in_order": False},
        pytest.param({"multiprocessing_context": "spawn"}, marks=pytest.mark.slow),
        {"pin_memory": True},
    ],
)
def test_workers_may_be_started_in_any_way(two: Ranks, options: dict[str, Any]) -> None:
    found = of_ranks_with(two, "stream by function", 2, num_workers=2, **options)
    assert [answer["error"] for answer in found] == ["", ""]
    for number in range(2):
        assert sorted(flat(found[0]["passes"][number]) + flat(found[1]["passes"][number])) == list(
            range(SAMPLES)
        )


def test_the_option_says_otherwise(two: Ranks) -> None:
    whole = of_ranks(two, "stream", 1, 100, "never")
    assert [flat(answer["passes"][0]) for answer in whole] == [
        list(range(SAMPLES))
    ] * 2 and not whole[0]["said"]
    cut = of_ranks(two, "stream by rank", 1, 100, "always")
    assert [len(flat(answer["passes"][0])) for answer in cut] == [5, 5] and not cut[0]["said"]
    cut = of_ranks(two, "DistributedSampler", 1, 100, "always")
    assert [len(flat(answer["passes"][0])) for answer in cut] == [5, 5]


@pytest.mark.parametrize(
    ("kind", "shares"),
    [
        ("five batches", [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [0, 1]]]),
        ("five batches, drop_last", [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]),
        ("list of batches", [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [0, 1]]]),
        ("one sample", [[[7]], [[7]]]),
        ("no sample", [[], []]),
        ("empty stream", [[], []]),
        ("stream of Nones", [[None, 1], [None, 2]]),
    ],
)
def test_tails_and_edges(two: Ranks, kind: str, shares: list[Any]) -> None:
    assert [answer["passes"][0] for answer in of_ranks(two, kind)] == shares


def test_a_generator_is_used_up_after_a_pass(two: Ranks) -> None:
    found = of_ranks(two, "generator", 2)
    assert sorted(flat(found[0]["passes"][0]) + flat(found[1]["passes"][0])) == list(range(SAMPLES))
    assert [answer["passes"][1] for answer in found] == [[], []]


def test_a_subclass_finishes_its_batches_on_several_ranks_as_on_one(two: Ranks) -> None:
    found = of_ranks(two, "halved", 2)
    expected = two.call("loaders.plain", "halved", 2)[0]
    for number, batches in enumerate(expected):
        seen = [item for answer in found for item in flat(answer["passes"][number])]
        assert sorted(seen) == sorted(flat(batches))
    said = two.call("loaders.subclass")[0]
    assert said == {
        "own": "kept",
        "later": 5,
        "kind": "Halved",
        "length": 5,
        "sampler": True,
        "plain length": 10,
    }


REFUSED = {
    "DistributedSampler of others": (
        "DistributedSampler is for rank 0 of 4, on the process that is rank 0 of 2"
    ),
    "DistributedSampler of rank 0": (
        "DistributedSampler is for rank 0 of 2, on the process that is rank 1 of 2"
    ),
    "other lengths": r"differ in length (rank 0: 8, rank 1: 9)",
    "begun early": "BegunEarly, which does not read its own sampler",
    "part by rank": "yields another order on every rank, even from one seed",
    "entropy": "yields another order on every rank, even from one seed",
    "longer on rank 1": "begins alike on all ranks, and differs in length (8, 9)",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_does_not_fit_is_refused_on_every_rank(two: Ranks, kind: str) -> None:
    for answer in of_ranks(two, kind):
        assert answer["error"].startswith("InputError: ") and REFUSED[kind] in answer["error"]
        assert "config.loader.shard = 'never'" in answer["error"] and "\n" not in answer["error"]


@pytest.mark.parametrize(
    "kind",
    ["shuffled on rank 0 alone", "DistributedSampler on rank 0 alone", "stream on rank 1 alone"],
)
def test_loaders_of_different_kinds_are_refused_on_every_rank(two: Ranks, kind: str) -> None:
    for answer in of_ranks(two, kind):
        assert (
            "InputError: the ranks' loaders are of different kinds (rank 0: map-style data, "
            "BatchSampler of " in answer["error"]
        )


@pytest.mark.parametrize("kind", ["failing sampler", "failing stream"])
@pytest.mark.parametrize("workers", [0, 1])
def test_what_one_rank_cannot_read_is_refused_on_all(two: Ranks, kind: str, workers: int) -> None:
    for answer in of_ranks_with(two, kind, 1, num_workers=workers):
        assert answer["error"].startswith("InputError: the s") and "\n" not in answer["error"]
        assert "could not be tried on rank 1 (OSError: " in answer["error"]
        assert "config.loader.shard = 'always'" in answer["error"]


@pytest.mark.parametrize("kind", ["rank 0 alone has another stream", "rank 0 alone has other data"])
def test_data_that_is_alike_on_some_ranks_alone_is_refused_on_all(three: Ranks, kind: str) -> None:
    for answer in of_ranks(three, kind):
        assert (
            answer["error"].startswith("InputError: the ")
            and "(rank 0; ranks 1, 2)" in answer["error"]
        )


def test_tensors_that_ranks_draw_without_a_common_seed_are_divided_which_is_said(
    two: Ranks,
) -> None:
    found = of_ranks(two, "noise")
    assert [len(flat(answer["passes"][0])) for answer in found] == [4, 4]
    (said,) = found[0]["said"]
    assert "counts as drawn at random" in said and "config.loader.shard = 'never'" in said


@pytest.mark.parametrize("who", ["loader", "its sampler", "the sampler"])
def test_the_callers_epochs_alone_are_those_of_a_distributed_sampler(two: Ranks, who: str) -> None:
    for passes, expected in two.call("loaders.epochs", who, [None, None, 3, 1]):
        assert passes == expected and passes[0] == passes[1] != passes[2]


def test_two_shuffled_loaders_have_orders_of_their_own(two: Ranks) -> None:
    one, other = zip(*two.call("loaders.two_orders"), strict=True)
    assert sorted(flat(list(one))) == sorted(flat(list(other))) == list(range(64))
    assert one != other


def test_lengths_are_those_of_a_ranks_share(two: Ranks) -> None:
    for kind, length in {
        "shuffled": 5,
        "five batches": 3,
        "list of batches": 3,
        "DistributedSampler": 5,
        "long stream": 5,
    }.items():
        assert two.call("loaders.lengths", kind) == [length, length]
    for kind in ("no length", "stream", "iterable"):
        with pytest.raises(TypeError, match="has no len"):
            two.call("loaders.lengths", kind)
