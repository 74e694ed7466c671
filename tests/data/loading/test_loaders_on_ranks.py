"""Over real ranks a loader yields each of its samples once, or all ranks refuse it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from against_torch.case import Case
from against_torch.run import ROUNDED, SAME, run
from ranks import Ranks

pytestmark = pytest.mark.slow

SAMPLES = 20
ALL = list(range(SAMPLES))


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    with Ranks(processes=2, hosts=1) as ranks:
        yield ranks


def flat(batches: list[Any]) -> list[Any]:
    return [item for batch in batches for item in (batch if isinstance(batch, list) else [batch])]


def seen(found: list[dict[str, Any]], number: int = 0) -> list[Any]:
    """Return the samples of one pass, all ranks together."""
    return sorted(item for answer in found for item in flat(answer["passes"][number]))


def of_ranks(
    ranks: Ranks, kind: str, passes: int = 1, most: int = 100, shard: str = "auto", **options: Any
) -> list[dict[str, Any]]:
    found = ranks.call("loaders.batches", kind, passes, most, shard, options)
    assert [answer["error"] for answer in found] == [""] * len(found)
    return found


@pytest.mark.parametrize("kind", ["sequential", "no length", "data without length", "list"])
def test_ranks_divide_the_order_of_plain_pytorch(two: Ranks, kind: str) -> None:
    found = of_ranks(two, kind, 2)
    assert found[0]["said"] == []
    for number, batches in enumerate(two.call("loaders.plain", kind, 2)[0]):
        for rank in range(2):
            assert flat(found[rank]["passes"][number]) == flat(batches)[rank::2]


SHARED = Case(launch="two_group_before", samples=20, batch_size=2)


@pytest.mark.parametrize(
    "loader",
    ["shuffled", "generator", "subset", "python_random", "numpy_random", "own_generators",
     "random_batches", "unbatched", "replacement", "weighted"],
)  # fmt: skip
def test_ranks_with_other_seeds_divide_one_order_anew_after_each_training_step(
    two: Ranks, loader: str
) -> None:
    verdict = run(dataclasses.replace(SHARED, loader=loader), two)
    assert verdict.outcome in (SAME, ROUNDED), verdict.lines


@pytest.mark.parametrize(
    ("loader", "loop"),
    [
        *((each, "rank_0_looks_first") for each in ("shuffled", "stream")),
        *((each, "rank_0_reads_a_pass") for each in ("shuffled", "stream")),
        *(("shuffled", loop) for loop in ("accumulate", "fetched_by_thread", "read_on", "measure")),
    ],
)
def test_loops_of_any_kind_see_every_sample_once(two: Ranks, loader: str, loop: str) -> None:
    # whatever rank 0 reads alone, and whether or not gradients are averaged between batches
    config = "always" if loader == "stream" else "plain"
    verdict = run(dataclasses.replace(SHARED, loader=loader, loop=loop, config=config), two)
    assert verdict.outcome in (SAME, ROUNDED), verdict.lines


@pytest.mark.parametrize("kind", ["refilled stream", "refilled iterable"])
def test_a_buffer_that_is_filled_again_is_read_in_time(two: Ranks, kind: str) -> None:
    assert seen(of_ranks(two, kind, shard="always")) == ALL


def test_changes_at_samplers_count(two: Ranks) -> None:
    one, other = two.call("loaders.changed_later")
    assert (one["larger"], other["larger"]) == (
        ([[0, 2, 4, 6, 8], [10, 12, 14, 16, 18]], 2),
        ([[1, 3, 5, 7, 9], [11, 13, 15, 17, 19]], 2),
    )
    assert one["without_tail"] == ([[0, 2, 4], [6, 8, 10], [12, 14, 16]], 3)
    assert len(flat(one["fewer"][0])) == len(flat(other["fewer"][0])) == 3
    assert "got a new sampler (DistributedSampler) since accelerate()" in one["of_ranks"]


@pytest.mark.parametrize("kind", ["stream", "stream of batches", "iterable"])
def test_batches_of_a_stream_are_dealt_whole_where_the_option_says_so(
    two: Ranks, kind: str
) -> None:
    found = of_ranks(two, kind, 2, shard="always")
    for number, batches in enumerate(two.call("loaders.plain", kind, 2)[0]):
        assert [answer["passes"][number] for answer in found] == [batches[::2], batches[1::2]]


@pytest.mark.parametrize("kind", ["endless", "endless with length"])
def test_an_endless_sampler_streams_in_one_order(two: Ranks, kind: str) -> None:
    found = of_ranks(two, kind, 1, 1500)  # more than are read ahead first
    one, other = (flat(answer["passes"][0]) for answer in found)
    assert len(one) == len(other) == 3000
    rounds = [number for pair in zip(one, other, strict=True) for number in pair]
    for start in range(0, 6000, SAMPLES):
        assert sorted(rounds[start : start + SAMPLES]) == ALL


@pytest.mark.parametrize("kind", ["DistributedSampler", "DistributedSampler inside"])
def test_what_a_distributed_sampler_divides_loses_nothing(two: Ranks, kind: str) -> None:
    found = of_ranks(two, kind, 2)
    assert seen(found) == seen(found, 1) == ALL
    assert not found[0]["said"] and not found[1]["said"]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("stream", {"persistent_workers": True, "shard": "always"}),
        ("stream of worker_init_fn", {"shard": "always"}),
        ("shuffled", {"persistent_workers": True}),
        ("shuffled", {"in_order": False, "pin_memory": True}),
    ],
    ids=str,
)
def test_the_same_with_worker_processes(two: Ranks, kind: str, options: dict[str, Any]) -> None:
    found = of_ranks(two, kind, 2, num_workers=2, **options)
    assert seen(found) == seen(found, 1) == ALL and not found[0]["said"]


def test_the_option_says_otherwise(two: Ranks) -> None:
    whole = of_ranks(two, "stream", 1, 100, "never")
    assert [flat(answer["passes"][0]) for answer in whole] == [ALL] * 2
    assert seen(of_ranks(two, "stream by rank", 2, 100, "never")) == ALL
    cut = of_ranks(two, "DistributedSampler", 1, 100, "always")
    assert [len(flat(answer["passes"][0])) for answer in cut] == [5, 5] and not cut[0]["said"]
    for answer in two.call("loaders.batches", "stream", 1, 9, "always", {"in_order": False}):
        assert "a stream with in_order=False" in answer["error"]


@pytest.mark.parametrize(
    ("kind", "shares"),
    [
        ("five batches", [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [0, 1]]]),
        ("five batches, drop_last", [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]),
        ("list of batches", [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [0, 1]]]),
        ("one sample", [[[7]], [[7]]]),
        ("no sample", [[], []]),
        ("files of each host", [[["0.jpg"]], [["1.jpg"]]]),
    ],
)
def test_tails_and_edges(two: Ranks, kind: str, shares: list[Any]) -> None:
    assert [answer["passes"][0] for answer in of_ranks(two, kind)] == shares


def test_a_generator_is_used_up_after_a_pass(two: Ranks) -> None:
    found = of_ranks(two, "generator", 2, shard="always")
    assert seen(found) == ALL and seen(found, 1) == []


def test_a_subclass_finishes_its_batches_on_several_ranks_as_on_one(two: Ranks) -> None:
    found = of_ranks(two, "halved", 2)
    for number, batches in enumerate(two.call("loaders.plain", "halved", 2)[0]):
        assert seen(found, number) == sorted(flat(batches))
    assert two.call("loaders.subclass")[0] == {
        "own": "kept",
        "later": 5,
        "kind": "Halved",
        "length": 5,
        "sampler": True,
        "plain length": 10,
    }


NEVER = "config.loader.shard = 'never'"
OTHER_ORDER = "the order of the sampler ({}) differs from rank to rank (rank 0; rank 1)"
OTHER_DATA = "the data set ({}) differs from rank to rank (rank 0; rank 1)"
KINDS = "the kind of the loader differs from rank to rank"
STREAM = "the loader is a stream ({}), of which nobody knows whether it divides itself by rank"
REFUSED = {
    "DistributedSampler of others": "sampler is for rank 0 of 4, on the process that is "
    "rank 0 of 2",
    "DistributedSampler of rank 0": "sampler is for rank 0 of 2, on the process that is "
    "rank 1 of 2",
    "other lengths": OTHER_DATA.format("list"),
    "rank 0 alone has other data": OTHER_DATA.format("list"),
    "Subset by rank": OTHER_DATA.format("Subset"),
    "other order of parts": OTHER_DATA.format("ConcatDataset"),
    "files by rank": OTHER_DATA.format("Files"),
    "list of each rank": OTHER_DATA.format("list"),
    "begun early": "BegunEarly, which does not read its own sampler",
    "by rank": OTHER_ORDER.format("ByRank"),
    "range by rank": OTHER_ORDER.format("range"),
    "subset by rank": OTHER_ORDER.format("SubsetRandomSampler"),
    "entropy": OTHER_ORDER.format("OfSystem"),
    "failing sampler": OTHER_ORDER.format("Failing"),
    "shuffled on rank 0 alone": KINDS,
    "DistributedSampler on rank 0 alone": KINDS,
    "stream on rank 1 alone": KINDS,
    "stream": STREAM.format("Stream"),
    "stream by rank": STREAM.format("Stream"),
    "stream once": STREAM.format("Once"),
    "iterable by rank": STREAM.format("Batches"),
    "data pipe": STREAM.format("_IterDataPipeSerializationWrapper"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_does_not_fit_is_refused_on_every_rank(two: Ranks, kind: str) -> None:
    for answer in two.call("loaders.batches", kind):
        error = answer["error"]
        assert error.startswith("InputError: ") and "\n" not in error
        assert REFUSED[kind] in error and NEVER in error, error


def test_tensors_that_ranks_draw_without_a_common_seed_are_divided_which_is_said(
    two: Ranks,
) -> None:
    found = of_ranks(two, "noise")
    assert [len(answer["passes"][0]) for answer in found] == [2, 2]
    (said,) = found[0]["said"]
    assert "counts as drawn at random" in said and NEVER in said


@pytest.mark.parametrize("who", ["loader", "its sampler", "the sampler"])
def test_the_callers_epochs_alone_are_those_of_a_distributed_sampler(two: Ranks, who: str) -> None:
    for passes, expected in two.call("loaders.epochs", who, [None, None, 3, 1]):
        assert passes == expected and passes[0] == passes[1] != passes[2]


def test_two_shuffled_loaders_have_orders_of_their_own(two: Ranks) -> None:
    one, other = zip(*two.call("loaders.two_orders"), strict=True)
    assert sorted(flat(list(one))) == sorted(flat(list(other))) == list(range(64))
    assert one != other


def test_lengths_are_those_of_a_ranks_share(two: Ranks) -> None:
    kinds = {"shuffled": 5, "five batches": 3, "list of batches": 3, "DistributedSampler": 5}
    for kind, length in kinds.items():
        assert two.call("loaders.lengths", kind) == [length, length]
    with pytest.raises(TypeError, match="has no len"):
        two.call("loaders.lengths", "no length")
