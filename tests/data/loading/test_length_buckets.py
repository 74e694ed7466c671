"""Batches of variable length: items of similar length come together."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from gallery_lib.data.loading.length_buckets import LengthBucketSampler
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
