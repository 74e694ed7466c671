"""Batches are copied to the device ahead of their use, on a stream of their own."""

from __future__ import annotations

import collections
import contextlib
import itertools
import types
from typing import Any

import pytest
import torch
from data.loading.numbered_data import Numbers
from torch.utils.data import DataLoader

from gallery_lib.data.loading import to_device
from gallery_lib.data.loading.to_device import CopiedAhead

CPU, META = torch.device("cpu"), torch.device("meta")


@pytest.fixture
def pretended_cuda(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replace CUDA streams by ones that do nothing; return what is said to be used on them."""
    used: list[Any] = []
    stream = types.SimpleNamespace(record_event=lambda: None, wait_event=lambda event: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device=None: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: stream)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor.clone())
    monkeypatch.setattr(
        to_device, "_used_on_current_stream", lambda tensor: used.append(tensor) or tensor
    )
    return used


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize(
    "given", [[0, None, 2, 3], [None, None, None], [None], [(), 0, "", {}], []]
)
def test_copying_ahead_hands_on_every_batch(
    pretended_cuda: list[Any], given: list[Any], depth: int
) -> None:
    assert list(CopiedAhead(iter(given), CPU, depth)) == given


def test_copying_ahead_reads_no_further_than_asked(pretended_cuda: list[Any]) -> None:
    read: list[int] = []
    batches = CopiedAhead((read.append(number) or number for number in itertools.count()), CPU, 2)
    assert next(batches) == 0 and read == [0, 1, 2]
    assert next(batches) == 1 and read == [0, 1, 2, 3]


def test_an_error_comes_when_its_batch_would_have_come(pretended_cuda: list[Any]) -> None:
    loader = DataLoader(Numbers(broken=7), 5)
    batches = CopiedAhead(iter(loader), CPU, 3)
    assert next(batches).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(FileNotFoundError, match="sample 7"):
        next(batches)
    assert [batch.tolist()[0] for batch in batches] == [10, 15]


def test_the_memory_of_every_tensor_is_kept_for_the_stream(pretended_cuda: list[Any]) -> None:
    class Graph:
        def __init__(self, x: torch.Tensor) -> None:
            self.x = x

        def to(self, device: torch.device) -> Graph:
            return Graph(self.x.to(device))

    shared = torch.ones(1)
    batch = [collections.UserDict(x=shared), shared, Graph(torch.zeros(2)), {torch.ones(3)}]
    (moved,) = CopiedAhead(iter([batch]), META, 2)
    expected = [moved[0]["x"], moved[2].x, *moved[3]]
    assert moved[0]["x"] is moved[1] and all(tensor.device == META for tensor in expected)
    assert [any(tensor is one for one in pretended_cuda) for tensor in expected] == [True] * 3
    assert len({id(tensor) for tensor in pretended_cuda}) == 3
