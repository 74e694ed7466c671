"""Each rank's share: equal, together the whole, for samplers and for streams."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info

from gallery_lib.comm import process_group
from gallery_lib.data.device_loader import DeviceLoader
from gallery_lib.data.sharding import ShardedSampler, ShardedStream, sharded
from gallery_lib.errors import InputError


class Counting(IterableDataset[int]):
    """0 … length − 1, divided among workers as PyTorch's documentation shows it; it knows epochs."""

    def __init__(self, length: int) -> None:
        self.length, self.epochs = length, []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        return iter(range(worker.id, self.length, worker.num_workers) if worker else range(self.length))


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


@given(length=st.integers(0, 50), world_size=st.integers(1, 8))
def test_a_stream_is_divided_in_whole_rounds(length: int, world_size: int) -> None:
    shares = [list(ShardedStream(Counting(length), rank, world_size)) for rank in range(world_size)]
    assert {len(share) for share in shares} == {length // world_size}
    assert sorted(item for share in shares for item in share) == list(range(length - length % world_size))


def test_workers_of_a_sharded_stream_still_divide_it_as_the_data_set_says() -> None:
    loaders = [sharded(DataLoader(Counting(16), batch_size=2, num_workers=2), rank, 2) for rank in range(2)]
    seen = [item for loader in loaders for batch in loader for item in batch.tolist()]
    assert sorted(seen) == list(range(16))


def test_a_sharded_stream_is_told_its_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    stream = Counting(8)
    loader = DeviceLoader(DataLoader(stream, batch_size=2), torch.device("cpu"), torch.contiguous_format)
    assert [len(list(loader)) for _ in range(2)] == [2, 2]
    assert stream.epochs == [0, 1]


def test_a_loader_that_cannot_be_sharded_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = DataLoader(TensorDataset(torch.arange(8)), batch_sampler=[[0, 1], [2, 3]])
    with pytest.raises(InputError, match="batch_sampler"):
        DeviceLoader(loader, torch.device("cpu"), torch.contiguous_format)


def test_data_sets_of_different_length_are_refused_with_the_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "all_ranks", lambda value: [value, value + 1])
    with pytest.raises(InputError, match=r"differ in length \(rank 0: 8, rank 1: 9\)"):
        sharded(DataLoader(TensorDataset(torch.arange(8))), 0, 2)
