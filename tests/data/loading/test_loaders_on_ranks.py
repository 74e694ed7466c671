"""Over real ranks a loader yields each of its samples once, or all ranks refuse it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from against_torch.case import Case
from against_torch.run import ROUNDED, SAME, run
from ranks import Ranks, on_ranks
from torch.utils.data import DataLoader, DistributedSampler
from user_loaders import DATA, LOADERS, SAMPLES, Halved

from gallery_lib.comm.process_group import all_ranks, rank
from gallery_lib.config import Loader
from gallery_lib.data.loading.device_loader import DeviceLoader
from gallery_lib.errors import InputError

pytestmark = pytest.mark.slow


def divided(loader: Any, shard: str = "auto") -> DeviceLoader:
    options = Loader(nice=0, shard=shard)
    return DeviceLoader(loader, torch.device("cpu"), torch.contiguous_format, options)


def one_pass(loader: Any, most: int = 100) -> list[Any]:
    """Return the first batches of a pass as lists."""
    batches = itertools.islice(loader, most)
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]


def read(
    kind: str, passes: int = 1, most: int = 100, shard: str = "auto", **options: Any
) -> list[list[Any]]:
    """Return the batches of some passes on this rank, without any warning of accelerate().

    The ranks are seeded differently. `options` are those of the loader.
    """
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(100 + rank())
    with warnings.catch_warnings():
        warnings.filterwarnings("error", r"(?s).*accelerate\(\)")
        loader = divided(LOADERS[kind](**options), shard)
        return [one_pass(loader, most) for _ in range(passes)]


def flat(batches: list[Any]) -> list[Any]:
    return [item for batch in batches for item in (batch if isinstance(batch, list) else [batch])]


def seen(batches: list[Any]) -> list[Any]:
    """Return the samples of one pass, all ranks together. Every rank has to call it."""
    return sorted(item for own in all_ranks(flat(batches)) for item in own)


@pytest.mark.parametrize("kind", ["sequential", "no length", "data without length", "list"])
@on_ranks("two")
def test_ranks_divide_the_order_of_plain_pytorch(kind: str) -> None:
    for batches in read(kind, 2):
        assert flat(batches) == flat(one_pass(LOADERS[kind]()))[rank() :: 2]


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


ALWAYS = {"shard": "always"}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("DistributedSampler", {}),
        ("DistributedSampler inside", {}),
        # A buffer that is filled again is read in time.
        ("refilled stream", ALWAYS),
        ("refilled iterable", ALWAYS),
        ("stream", {"num_workers": 2, "persistent_workers": True, **ALWAYS}),
        ("stream of worker_init_fn", {"num_workers": 2, **ALWAYS}),
        ("shuffled", {"num_workers": 2, "persistent_workers": True}),
        ("shuffled", {"num_workers": 2, "in_order": False, "pin_memory": True}),
    ],
    ids=str,
)
@on_ranks("two")
def test_every_sample_is_seen_once_in_each_pass(kind: str, options: dict[str, Any]) -> None:
    for batches in read(kind, 2, **options):
        assert seen(batches) == DATA


@on_ranks("two")
def test_changes_at_samplers_count() -> None:
    own, loader = DATA[rank() :: 2], divided(LOADERS["sequential"]())
    list(loader)
    loader.batch_sampler.batch_size = 5
    assert one_pass(loader) == [own[:5], own[5:]] and len(loader) == 2
    loader.batch_sampler.batch_size, loader.batch_sampler.drop_last = 3, True
    assert one_pass(loader) == [own[:3], own[3:6], own[6:9]] and len(loader) == 3
    loader.batch_sampler.sampler = DistributedSampler(DATA)
    with pytest.raises(InputError, match=r"a new sampler \(DistributedSampler\) since accelerate"):
        list(loader)
    loader = divided(LOADERS["few weighted"]())
    list(loader)
    loader.sampler.num_samples = 6
    assert len(flat(one_pass(loader))) == 3


@pytest.mark.parametrize("kind", ["stream", "stream of batches", "iterable"])
@on_ranks("two")
def test_batches_of_a_stream_are_dealt_whole_where_the_option_says_so(kind: str) -> None:
    for batches in read(kind, 2, shard="always"):
        assert batches == one_pass(LOADERS[kind]())[rank() :: 2]


@pytest.mark.parametrize("kind", ["endless", "endless with length"])
@on_ranks("two")
def test_an_endless_sampler_streams_in_one_order(kind: str) -> None:
    (batches,) = read(kind, 1, 1500)  # more than are read ahead first
    one, other = all_ranks(flat(batches))
    assert len(one) == len(other) == 3000
    rounds = [number for pair in zip(one, other, strict=True) for number in pair]
    for start in range(0, 6000, SAMPLES):
        assert sorted(rounds[start : start + SAMPLES]) == DATA


@on_ranks("two")
def test_the_option_says_otherwise() -> None:
    assert flat(*read("stream", shard="never")) == DATA
    for batches in read("stream by rank", 2, shard="never"):
        assert seen(batches) == DATA
    assert len(flat(*read("DistributedSampler", shard="always"))) == 5
    with pytest.raises(InputError, match="a stream with in_order=False"):
        read("stream", shard="always", in_order=False)


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
@on_ranks("two")
def test_tails_and_edges(kind: str, shares: list[Any]) -> None:
    assert read(kind) == [shares[rank()]]


@on_ranks("two")
def test_a_generator_is_used_up_after_a_pass() -> None:
    first, second = read("generator", 2, shard="always")
    assert seen(first) == DATA and second == []


@on_ranks("two")
def test_a_subclass_finishes_its_batches_on_several_ranks_as_on_one() -> None:
    for batches in read("halved", 2):
        assert seen(batches) == sorted(flat(one_pass(LOADERS["halved"]())))
    loader = Halved(DATA, 2, shuffle=True, drop_last=True)
    loader.own = "kept"
    ours = divided(loader)
    ours.later = 5
    assert (ours.own, ours.loader.later, type(ours.loader).__name__) == ("kept", 5, "Halved")
    assert (len(ours), len(loader), ours.sampler) == (5, 10, loader.sampler)


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
@on_ranks("two")
def test_what_does_not_fit_is_refused_on_every_rank(kind: str) -> None:
    with pytest.raises(InputError) as refusal:
        read(kind)
    message = str(refusal.value)
    assert REFUSED[kind] in message and NEVER in message and "\n" not in message


@on_ranks("two")
def test_tensors_that_ranks_draw_without_a_common_seed_are_divided_which_is_said() -> None:
    torch.manual_seed(rank())
    loader = LOADERS["noise"]()
    said = pytest.warns(UserWarning, match=f"counts as drawn at random.*{NEVER}")
    with contextlib.nullcontext() if rank() else said:  # rank 0 speaks
        batches = one_pass(divided(loader))
    assert len(batches) == 2


@pytest.mark.parametrize("who", ["loader", "its sampler", "the sampler"])
@on_ranks("two")
def test_the_callers_epochs_alone_are_those_of_a_distributed_sampler(who: str) -> None:
    loader, plain = (DataLoader(DATA, 2, sampler=DistributedSampler(DATA)) for _ in range(2))
    ours, passes = divided(loader), []
    owners: Any = {"loader": ours, "its sampler": ours.sampler, "the sampler": loader.sampler}
    for epoch in (None, None, 3, 1):
        if epoch is not None:
            owners[who].set_epoch(epoch)
            plain.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        passes.append(one_pass(ours))
        assert passes[-1] == one_pass(plain)
    assert passes[0] == passes[1] != passes[2]


@on_ranks("two")
def test_two_shuffled_loaders_have_orders_of_their_own() -> None:
    torch.manual_seed(rank())
    loaders = [divided(DataLoader(range(64), 4, shuffle=True)) for _ in range(2)]
    one, other = (torch.cat(list(loader)).tolist() for loader in loaders)
    assert seen(one) == seen(other) == list(range(64)) and one != other


@on_ranks("two")
def test_lengths_are_those_of_a_ranks_share() -> None:
    kinds = {"shuffled": 5, "five batches": 3, "list of batches": 3, "DistributedSampler": 5}
    for kind, length in kinds.items():
        assert len(divided(LOADERS[kind]())) == length
    with pytest.raises(TypeError, match="has no len"):
        len(divided(LOADERS["no length"]()))
