"""Tests inside a process with the fake device: batches arrive whole, whatever the order of work."""

from __future__ import annotations

import collections
import itertools
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_gpu import work
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from gallery_lib.config import Loader
from gallery_lib.data.loading.device_loader import DeviceLoader

DEVICE = torch.device("cuda", 0)
BATCHES, SAMPLES = 24, 64
VALUES = torch.randn(BATCHES * SAMPLES, 512, generator=torch.Generator().manual_seed(1))


class Graph:
    """Batch that moves itself, like PyTorch Geometric's data."""

    def __init__(self, x):
        self.x = x

    def to(self, device):
        return type(self)(self.x.to(device))


class Hidden:
    """Batch that moves itself, and whose tensor is in a slot, where nobody looks for it."""

    __slots__ = ("x",)
    __init__, to = Graph.__init__, Graph.to


KINDS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "as they are": (lambda x: x, lambda batch: batch),
    "named": (lambda x: {"a": x, "b": [x + 1]}, lambda batch: batch["b"][0] - 1),
    "graph": (Graph, lambda batch: batch.x),
    "hidden": (lambda x: {"labels": x + 1, "points": Hidden(x)}, lambda batch: batch["points"].x),
    "twice": (lambda x: [collections.UserDict(x=x), x], lambda batch: batch[0]["x"]),
}
"""How a batch is made of its values, and how they are read."""


def device_loader(prefetch: int, kind: str) -> DeviceLoader:
    batches = [KINDS[kind][0](values.clone()) for values in VALUES.split(SAMPLES)]
    return on_device(batches, prefetch)


def on_device(loader: Any, prefetch: int) -> DeviceLoader:
    return DeviceLoader(loader, DEVICE, torch.contiguous_format, Loader(prefetch=prefetch))


def used(value: torch.Tensor) -> torch.Tensor:
    """Return what a model makes of a batch: work that is queued, and reads the batch late."""
    return (value * 2).sum(0) + value.sum(0)


@pytest.mark.parametrize("prefetch", [0, 1, 2, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_the_loader_though_memory_is_used_again(prefetch, kind):
    results = []
    for batch in device_loader(prefetch, kind):
        value = KINDS[kind][1](batch)
        assert value.device == DEVICE
        results.append(used(value))
        del batch, value
        # What comes next takes the memory that was given back.
        torch.full((SAMPLES, 512), -1e9, device=DEVICE)
    found = torch.stack(results).cpu()
    expected = torch.stack([used(each) for each in VALUES.split(SAMPLES)])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_batches_may_be_used_on_a_stream_of_the_callers_own(seed):
    """The order of copies and their use is drawn."""
    work.LIBRARY.fake_gpu_order(f"random:{seed}".encode())
    try:
        with work.on_a_side_stream(DEVICE):
            found = torch.stack([used(batch) for batch in device_loader(2, "as they are")])
        found = found.cpu()
    finally:
        work.LIBRARY.fake_gpu_order(os.environ["FAKE_GPU_ORDER"].encode())
    expected = torch.stack([used(each) for each in VALUES.split(SAMPLES)])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-3)


def test_all_passes_copy_to_the_same_memory():
    loader, reserved = device_loader(2, "as they are"), []
    for _ in range(5):
        results = [used(batch) for batch in loader]
        torch.stack(results).cpu()
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[1:] == reserved[1:2] * 4


def test_the_host_does_not_wait_for_the_device():
    batches = iter(device_loader(2, "as they are"))
    first = used(next(batches))
    with work.waiting_forbidden():
        rest = [used(batch) for batch in batches]
    assert len(rest) == BATCHES - 1
    assert torch.stack([first, *rest]).isfinite().all().item()


def test_every_batch_comes_and_no_more_are_read_than_asked():
    given = [0, None, (), None, "", {}, None]
    for depth in (1, 2, 3):
        assert list(on_device(given, depth)) == given
    read = []
    numbers = (read.append(number) or number for number in itertools.count())
    batches = iter(on_device(numbers, 2))
    assert next(batches) == 0 and read == [0, 1, 2]
    assert next(batches) == 1 and read == [0, 1, 2, 3]


class Broken(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        if index == 7:
            raise FileNotFoundError("sample 7")
        return index


def test_an_error_comes_when_its_batch_would_have_come():
    batches = iter(on_device(DataLoader(Broken(), 5), 3))
    assert next(batches).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(FileNotFoundError, match="sample 7"):
        next(batches)
    assert [batch.tolist()[0] for batch in batches] == [10, 15]
