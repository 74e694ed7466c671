"""Batches of any nesting come to the device, and the data set learns its epochs."""

from collections import namedtuple

import torch
from torch.utils.data import DataLoader, TensorDataset

from gallery_lib.data.device_loader import DeviceLoader, to_device


def test_every_tensor_of_a_nested_batch_moves_and_the_rest_stays() -> None:
    Pair = namedtuple("Pair", "a b")
    batch = {"x": [torch.ones(2), (torch.zeros(1), "text")], "y": Pair(torch.ones(1), 3)}
    moved = to_device(batch, torch.device("meta"))
    assert moved["x"][0].device.type == moved["x"][1][0].device.type == moved["y"].a.device.type == "meta"
    assert (moved["x"][1][1], moved["y"].b, type(moved["y"])) == ("text", 3, Pair)


def test_each_pass_tells_the_data_set_its_epoch() -> None:
    epochs: list[int] = []

    class Counting(TensorDataset):
        def set_epoch(self, epoch: int) -> None:
            epochs.append(epoch)

    loader = DeviceLoader(DataLoader(Counting(torch.arange(4))), torch.device("cpu"), torch.contiguous_format)
    for _ in range(3):
        assert len(list(loader)) == 4
    assert epochs == [0, 1, 2]
