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


SINGLE = [
    "sequential",
    "shuffled",
    "shuffled, generator",
    "with replacement",
    "weighted",
    "few weighted",
    "subset",
    "Python's random",
]
SINGLE += ["NumPy's random", "no length", "data without length", "list", "stream"]


@pytest.mark.parametrize("kind", SINGLE)
def test_ranks_divide_the_order_that_rank_0_draws_in_plain_pytorch(two: Ranks, kind: str) -> None:
    found = of_ranks(two, kind, 2)
    expected = two.call("loaders.plain", kind, 2)[0]
    assert [answer["error"] for answer in found] == ["", ""] and found[0]["said"] == []
    for number, batches in enumerate(expected):
        for rank in range(2):
            assert flat(found[rank]["passes"][number]) == dealt(flat(batches), rank)


@pytest.mark.parametrize(
    "kind", ["random batches", "random batches, no collation", "stream of batches", "iterable"]
)
def test_batches_that_come_as_such_are_dealt_whole(two: Ranks, kind: str) -> None:
    found = of_ranks(two, kind, 2)
    expected = two.call("loaders.plain", kind, 2)[0]
    for number, batches in enumerate(expected):
        assert [answer["passes"][number] for answer in found] == [
            dealt(batches, 0),
            dealt(batches, 1),
        ]


@pytest.mark.parametrize("kind", ["endless", "endless with length"])
def test_an_endless_sampler_streams_in_rank_0s_order(two: Ranks, kind: str) -> None:
    found = of_ranks(two, kind, 1, 1500)  # more than are read ahead first
    (expected,) = two.call("loaders.plain", kind, 1, 3000)[0]
    for rank in range(2):
        assert len(found[rank]["passes"][0]) == 1500
        assert flat(found[rank]["passes"][0]) == dealt(flat(expected), rank)[:3000]


def test_an_endless_stream_goes_on(two: Ranks) -> None:
    found = of_ranks(two, "endless stream", 1, 40)
    assert [flat(answer["passes"][0]) for answer in found] == [
        list(range(0, 160, 2)),
        list(range(1, 160, 2)),
    ]


DIVIDED = [
    "DistributedSampler",
    "DistributedSampler inside",
    "by rank",
    "range by rank",
    "subset by rank",
    "Subset by rank",
]
DIVIDED += ["stream by rank", "iterable by rank"]


@pytest.mark.parametrize("kind", DIVIDED)
def test_what_is_divided_already_loses_nothing(two: Ranks, kind: str) -> None:
    found = of_ranks(two, kind, 2)
    assert [answer["error"] for answer in found] == ["", ""]
    for number in range(2):
        seen = flat(found[0]["passes"][number]) + flat(found[1]["passes"][number])
        assert sorted(seen) == list(range(SAMPLES))
    announced = not kind.startswith("DistributedSampler")
    assert [len(answer["said"]) for answer in found] == [int(announced), 0]
    if announced:
        assert (
            "config.loader.shard = 'always' divides it" in found[0]["said"][0]
            and "\n" not in found[0]["said"][0]
        )


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
        uneven = "uneven" in kind  # a rank that has run out repeats its first batch
        assert sorted(scale * item for item in (set(seen) if uneven else seen)) == list(
            range(11 if uneven else SAMPLES)
        )
    assert len(found[0]["said"]) == int("by rank" in kind)


def of_ranks_with(ranks: Ranks, kind: str, passes: int, **options: Any) -> list[dict[str, Any]]:
    return ranks.call("loaders.batches_with", kind, passes, options)


def test_an_uneven_stream_that_divides_itself_loses_nothing(two: Ranks) -> None:
    found = of_ranks(two, "uneven stream by rank")
    assert sorted(flat(found[0]["passes"][0]) + flat(found[1]["passes"][0])) == list(range(11))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_rank_that_runs_out_repeats_its_first_batch_so_that_no_rank_waits_for_it(
    two: Ranks, workers: int
) -> None:
    found = of_ranks_with(two, "very uneven stream by rank", 2, num_workers=workers)
    assert [answer["error"] for answer in found] == ["", ""]
    assert [sorted(flat(batches)) for batches in found[0]["passes"]] == [list(range(15))] * 2
    own = 6
    for batches in found[1]["passes"]:
        assert len(batches) == len(found[0]["passes"][0])
        assert sorted(set(flat(batches))) == list(range(100, 100 + own))
        assert all(batch == batches[0] for batch in batches[own // 2 + workers // 2 :])
    assert any("rank 1 has run out of batches after" in said for said in found[1]["said"])


def test_a_rank_without_any_batch_of_its_own_is_refused_on_all_ranks(two: Ranks) -> None:
    for answer in of_ranks(two, "stream on rank 0 alone"):
        assert answer["error"].startswith(
            "InputError: rank 1 has no batch at all in this pass, and others have."
        )


def test_a_stream_that_divides_itself_and_knows_its_length(two: Ranks) -> None:
    found = of_ranks(two, "long stream by rank")
    assert sorted(flat(found[0]["passes"][0]) + flat(found[1]["passes"][0])) == list(range(11))
    (said,) = found[0]["said"]
    assert "lengths differ (6, 5), and all take as many steps as the longest has" in said
    assert two.call("loaders.lengths", "long stream") == [5, 5]


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
        assert [flat(answer["passes"][number]) for answer in found] == [
            dealt(flat(batches), 0),
            dealt(flat(batches), 1),
        ]
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
    "part by rank": "have no sample in common",
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
def test_when_one_rank_cannot_read_none_waits(two: Ranks, kind: str, workers: int) -> None:
    found = of_ranks_with(two, kind, 1, num_workers=workers)
    assert found[1]["error"].startswith("OSError: ")
    assert found[0]["error"].startswith("InputError: the s") and "on rank 1" in found[0]["error"]


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


def test_data_of_each_ranks_own_is_left_to_it(two: Ranks) -> None:
    found = of_ranks(two, "list of each rank")
    assert [flat(answer["passes"][0]) for answer in found] == [
        list(range(0, SAMPLES, 2)),
        list(range(1, SAMPLES, 2)),
    ]
    assert len(found[0]["said"]) == 1


def test_a_padded_share_is_known_as_one(two: Ranks) -> None:
    found = of_ranks(two, "padded by rank")
    assert sorted(flat(found[0]["passes"][0]) + flat(found[1]["passes"][0])) == [0, *range(19)]


@pytest.mark.parametrize("who", ["loader", "its sampler", "the sampler"])
def test_the_callers_epochs_are_those_of_a_distributed_sampler(two: Ranks, who: str) -> None:
    for found, expected in two.call("loaders.epochs", who, [0, 0, 3, 1]):
        assert found == expected and found[0] == found[1] != found[2]


def test_a_distributed_sampler_whose_epochs_nobody_tells_is_shuffled_anew(two: Ranks) -> None:
    for answer in of_ranks(two, "DistributedSampler", 3):
        first, second, third = map(flat, answer["passes"])
        assert first != second != third != first


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
    }.items():
        assert two.call("loaders.lengths", kind) == [length, length]
    for kind in ("no length", "stream", "iterable"):
        with pytest.raises(TypeError, match="has no len"):
            two.call("loaders.lengths", kind)
