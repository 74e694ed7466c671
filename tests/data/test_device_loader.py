"""Sharding over ranks, and batches of any nesting."""

from collections import namedtuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from gallery_lib.data.device_loader import DeviceLoader, ShardedSampler, to_device
from gallery_lib.errors import InputError


@given(length=st.integers(1, 50), world_size=st.integers(1, 8), drop_last=st.booleans())
def test_ranks_get_equal_shares_that_cover_the_data(length: int, world_size: int, drop_last: bool) -> None:
    shares = [list(ShardedSampler(range(length), rank, world_size, drop_last=drop_last)) for rank in range(world_size)]
    assert len({len(share) for share in shares}) == 1
    seen = sorted(index for share in shares for index in share)
    if drop_last:
        assert seen == sorted(set(seen))
        assert len(seen) == length - length % world_size
    else:
        assert set(seen) == set(range(length))


def test_the_union_of_one_step_is_the_batch_of_a_single_process() -> None:
    order = torch.randperm(32).tolist()
    shares = [list(ShardedSampler(order, rank, 4, drop_last=True)) for rank in range(4)]
    for step in range(4):
        union = {index for share in shares for index in share[2 * step : 2 * step + 2]}
        assert union == set(order[8 * step : 8 * step + 8])


def test_every_tensor_of_a_nested_batch_moves_and_the_rest_stays() -> None:
    Pair = namedtuple("Pair", "a b")
    batch = {"x": [torch.ones(2), (torch.zeros(1), "text")], "y": Pair(torch.ones(1), 3)}
    moved = to_device(batch, torch.device("meta"))
    assert moved["x"][0].device.type == moved["x"][1][0].device.type == moved["y"].a.device.type == "meta"
    assert (moved["x"][1][1], moved["y"].b, type(moved["y"])) == ("text", 3, Pair)


def test_a_loader_that_cannot_be_sharded_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    data = TensorDataset(torch.arange(8))
    loader = DataLoader(data, batch_sampler=[[0, 1], [2, 3]])
    with pytest.raises(InputError, match="batch_sampler"):
        DeviceLoader(loader, torch.device("cpu"), torch.contiguous_format)


def test_each_pass_tells_the_data_set_its_epoch() -> None:
    epochs: list[int] = []

    class Counting(TensorDataset):
        def set_epoch(self, epoch: int) -> None:
            epochs.append(epoch)

    loader = DeviceLoader(DataLoader(Counting(torch.arange(4))), torch.device("cpu"), torch.contiguous_format)
    for _ in range(3):
        assert len(list(loader)) == 4
    assert epochs == [0, 1, 2]
