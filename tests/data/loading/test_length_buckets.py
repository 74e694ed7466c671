"""Batches of variable length: similar lengths together, and padding to few shapes."""

from __future__ import annotations

import dataclasses
from collections import defaultdict, namedtuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusal import refused
from torch.utils.data import DataLoader
from transformers import BatchEncoding

from gallery_lib.config import Loader
from gallery_lib.data.loading.device_loader import DeviceLoader
from gallery_lib.data.loading.length_buckets import LengthBucketSampler, pad_to_bucket
from gallery_lib.data.loading.samplers import ShardedSampler

LENGTHS = torch.randint(10, 200, (640,), generator=torch.Generator().manual_seed(0)).tolist()


def sampler(batch_items: int, seed: int = 0, lengths: list[int] = LENGTHS) -> LengthBucketSampler:
    return LengthBucketSampler(lengths, batch_items, torch.Generator().manual_seed(seed))


def spread(indices: list[int], batch_items: int) -> float:
    """Return the mean difference between the longest and the shortest item of a batch."""
    batches = [
        [LENGTHS[i] for i in indices[start : start + batch_items]]
        for start in range(0, len(indices), batch_items)
    ]
    return sum(max(batch) - min(batch) for batch in batches) / len(batches)


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=100),
    batch_items=st.integers(1, 9),
    seed=st.integers(0, 9),
)
def test_each_index_comes_once_in_a_pass(lengths: list[int], batch_items: int, seed: int) -> None:
    chosen = sampler(batch_items, seed, lengths)
    assert len(chosen) == len(lengths)
    assert sorted(chosen) == list(range(len(lengths)))


def test_a_batch_has_similar_lengths() -> None:
    at_random = torch.randperm(len(LENGTHS), generator=torch.Generator().manual_seed(3)).tolist()
    assert spread(list(sampler(8)), 8) < spread(at_random, 8) / 5


def test_each_ranks_share_of_a_step_has_similar_lengths_and_the_ranks_have_them_in_common() -> None:
    shares = [list(ShardedSampler(sampler(2 * 8), rank, 2, drop_last=True)) for rank in range(2)]
    assert sorted(shares[0] + shares[1]) == list(range(len(LENGTHS)))
    for step in range(len(LENGTHS) // 16):
        lengths = [[LENGTHS[i] for i in share[8 * step : 8 * step + 8]] for share in shares]
        assert abs(max(lengths[0]) - max(lengths[1])) <= 15
        assert all(max(mine) - min(mine) <= 60 for mine in lengths)
    assert spread(shares[0], 8) < 25


def test_every_pass_has_another_order_and_the_same_seed_the_same_ones() -> None:
    first, again = sampler(8), sampler(8)
    passes = [list(first), list(first)]
    assert passes[0] != passes[1]
    assert passes == [list(again), list(again)]
    assert passes[0] != list(sampler(8, seed=1))


def test_long_and_short_batches_are_mixed() -> None:
    order = list(sampler(8))
    means = [
        sum(LENGTHS[i] for i in order[start : start + 8]) / 8 for start in range(0, len(order), 8)
    ]
    half = len(means) // 2
    assert abs(sum(means[:half]) - sum(means[half:])) / half < 30
    assert sorted(means) != means


BUCKETS = (8, 4, 16)


@pytest.mark.parametrize(("length", "padded"), [(1, 4), (4, 4), (5, 8), (16, 16), (17, 17)])
def test_a_batch_gets_the_smallest_bucket_that_holds_it(length: int, padded: int) -> None:
    ids = torch.arange(1, 2 * length + 1).reshape(2, length)
    batch = pad_to_bucket({"ids": ids, "labels": ids, "n": 3}, BUCKETS, {"ids": 0, "labels": -100})
    assert batch["ids"].shape == batch["labels"].shape == (2, padded)
    assert torch.equal(batch["ids"][:, :length], ids)
    assert (batch["ids"][:, length:] == 0).all() and (batch["labels"][:, length:] == -100).all()
    assert batch["n"] == 3


def test_parts_of_different_length_share_the_bucket_of_the_longest() -> None:
    batch = pad_to_bucket([torch.ones(2, 5, 3), torch.ones(2, 2)], BUCKETS, {0: 0.5, 1: 7})
    assert [tuple(part.shape) for part in batch] == [(2, 8, 3), (2, 8)]
    assert (batch[0][:, 5:] == 0.5).all()


def test_what_is_not_there_or_has_no_length_is_named() -> None:
    with refused("pad_values", "'idz'", "'ids'"):
        pad_to_bucket({"ids": torch.ones(1, 3)}, BUCKETS, {"idz": 0})
    with refused("pad_values", "'labels'", "length"):
        pad_to_bucket(
            {"ids": torch.ones(1, 3), "labels": torch.ones(3)}, BUCKETS, {"ids": 0, "labels": 0}
        )


def test_a_loader_of_variable_length_yields_only_the_shapes_of_the_buckets() -> None:
    items = [torch.ones(length) for length in range(1, 17)]
    loader = DataLoader(
        items,
        batch_size=2,
        collate_fn=lambda group: {"x": torch.nn.utils.rnn.pad_sequence(group, batch_first=True)},
    )  # type: ignore[arg-type]
    options = Loader(buckets=BUCKETS, pad_values={"x": 0.0})
    shapes = {
        tuple(batch["x"].shape)
        for batch in DeviceLoader(loader, torch.device("cpu"), torch.contiguous_format, options)
    }
    assert shapes == {(2, 4), (2, 8), (2, 16)}


def test_what_pads_nothing_is_refused() -> None:
    for options, missing in (
        (Loader(buckets=BUCKETS), "pad_values"),
        (Loader(pad_values={"x": 0.0}), "buckets"),
    ):
        with refused(missing, f"{missing} is not"):
            DeviceLoader([], torch.device("cpu"), torch.contiguous_format, options)


def test_a_batch_of_any_kind_keeps_its_type() -> None:
    @dataclasses.dataclass(frozen=True)
    class Batch:
        x: torch.Tensor
        name: str = "kept"

    Pair = namedtuple("Pair", "x y")
    three = torch.ones(1, 3)
    for batch, name in (
        (Batch(three), "x"),
        (Pair(three, 5), 0),
        ((three, 5), 0),
        (BatchEncoding({"ids": three}), "ids"),
        (defaultdict(list, x=three), "x"),
    ):
        padded = pad_to_bucket(batch, BUCKETS, {name: 0})
        part = padded.x if isinstance(padded, Batch) else padded[name]  # type: ignore[index]
        assert type(padded) is type(batch) and part.shape == (1, 4)
        assert not isinstance(padded, Batch) or padded.name == "kept"


def test_a_batch_that_fits_is_not_touched() -> None:
    batch = {"x": torch.ones(1, 4), "y": torch.ones(1, 4)}
    assert pad_to_bucket(batch, BUCKETS, {"x": 0, "y": 1}) is batch
    assert pad_to_bucket(None, BUCKETS, {"x": 0}) is None


def test_a_batch_without_parts_is_refused() -> None:
    with refused("pad_values", "'x'", "Tensor"):
        pad_to_bucket(torch.ones(1, 3), BUCKETS, {"x": 0})
