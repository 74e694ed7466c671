"""The ranks' shares are equal and together the whole; items of similar length come together."""

from __future__ import annotations

import inspect

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader

from gallery_lib.data.loading.samplers import LengthBucketSampler, ShardedSampler
from gallery_lib.data.loading.sharding import sharded, share_of


@given(length=st.integers(1, 50), world_size=st.integers(1, 8), drop_last=st.booleans())
def test_ranks_get_equal_shares_that_cover_the_data(
    length: int, world_size: int, drop_last: bool
) -> None:
    shares = [
        list(ShardedSampler(range(length), rank, world_size, drop_last=drop_last))
        for rank in range(world_size)
    ]
    assert len({len(share) for share in shares}) == 1
    seen = [index for step in zip(*shares, strict=True) for index in step]
    whole = length - length % world_size
    assert seen[:whole] == list(range(whole))  # a step is the batch of a single process
    assert seen[whole:] == [] if drop_last else set(seen) == set(range(length))


@given(length=st.integers(0, 50), world_size=st.integers(1, 8))
def test_a_stream_is_divided_in_whole_rounds(length: int, world_size: int) -> None:
    shares = [list(share_of(range(length), rank, world_size, False)) for rank in range(world_size)]
    assert {len(share) for share in shares} == {length // world_size}
    assert sorted(item for share in shares for item in share) == list(
        range(length - length % world_size)
    )


def test_a_copy_keeps_every_argument_that_this_torch_has() -> None:
    loader = DataLoader(
        list(range(8)),
        batch_size=2,
        shuffle=True,
        num_workers=1,
        collate_fn=list,
        drop_last=True,
        timeout=9,
        worker_init_fn=print,
        multiprocessing_context="spawn",
        generator=torch.Generator(),
        prefetch_factor=3,
        persistent_workers=True,
        in_order=False,
    )
    copy = sharded(loader, 1, 2).loader
    arguments = set(inspect.signature(DataLoader).parameters) - {
        "shuffle",
        "sampler",
        "batch_sampler",
    }
    assert len(arguments) > 10
    for name in arguments:
        assert getattr(copy, name) is getattr(loader, name), name
    assert (len(copy), copy.batch_sampler.batch_size, copy.batch_sampler.drop_last) == (2, 2, True)


def test_a_subclass_with_samplers_of_its_own_class_keeps_the_class() -> None:
    class Own(BatchSampler):
        """Batch sampler of a class of its own, as a loader has it whose state can be saved."""

    class Stateful(DataLoader[int]):
        def __init__(self, data: list[int]) -> None:
            super().__init__(data, batch_size=2)
            object.__setattr__(self, "batch_sampler", Own(self.sampler, 2, False))
            self.bound = self.describe

        def describe(self) -> int:
            return id(self)

    copy = sharded(Stateful(list(range(8))), 1, 2).loader
    assert type(copy.batch_sampler) is Own and [batch.tolist() for batch in copy] == [
        [1, 3],
        [5, 7],
    ]
    assert copy.bound() == id(copy)


LENGTHS = torch.randint(10, 200, (640,), generator=torch.Generator().manual_seed(0)).tolist()


def sampler(batch_items: int, seed: int = 0, lengths: list[int] = LENGTHS) -> LengthBucketSampler:
    return LengthBucketSampler(lengths, batch_items, torch.Generator().manual_seed(seed))


def batches_of_8(indices: list[int]) -> torch.Tensor:
    """Return the lengths of the items at these indices: [batches, 8]."""
    return torch.tensor([LENGTHS[i] for i in indices]).double().view(-1, 8)


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=100),
    batch_items=st.integers(1, 9),
    seed=st.integers(0, 9),
)
def test_each_index_comes_once_in_a_pass(lengths: list[int], batch_items: int, seed: int) -> None:
    chosen = sampler(batch_items, seed, lengths)
    assert len(chosen) == len(lengths)
    assert sorted(chosen) == list(range(len(lengths)))


def test_each_ranks_share_of_a_step_has_similar_lengths_and_the_ranks_have_them_in_common() -> None:
    shares = [list(ShardedSampler(sampler(2 * 8), rank, 2, drop_last=True)) for rank in range(2)]
    assert sorted(shares[0] + shares[1]) == list(range(len(LENGTHS)))
    for step in range(len(LENGTHS) // 16):
        lengths = [[LENGTHS[i] for i in share[8 * step : 8 * step + 8]] for share in shares]
        assert abs(max(lengths[0]) - max(lengths[1])) <= 15
        assert all(max(mine) - min(mine) <= 60 for mine in lengths)
    batches = batches_of_8(shares[0])
    assert (batches.amax(dim=1) - batches.amin(dim=1)).mean() < 25


@pytest.mark.parametrize("seed", range(5))
def test_long_and_short_batches_are_mixed_within_a_pass(seed: int) -> None:
    means = batches_of_8(list(sampler(8, seed))).mean(dim=1)
    neighbours = torch.stack((means[:-1], means[1:]))
    assert torch.corrcoef(neighbours)[0, 1].abs() < 0.4


def test_every_pass_has_another_order_and_the_same_seed_the_same_ones() -> None:
    first, again = sampler(8), sampler(8)
    passes = [list(first), list(first)]
    assert passes[0] != passes[1]
    assert passes == [list(again), list(again)]
    assert passes[0] != list(sampler(8, seed=1))
