"""In a process group of one nothing is averaged and nothing is rounded."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn

from gallery_lib.comm.accelerate_ddp import accelerate_ddp
from gallery_lib.comm.strategy import gradient_reducer
from gallery_lib.comm.tuner import apply
from gallery_lib.comm.watch import watch_of
from gallery_lib.config import Comm


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


WAYS = [Comm(wire=wire) for wire in ("bf16", "int8", "powersgd")] + [
    Comm(streams=2, hierarchical=True, bucket_views=True)
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way.wire}, {way.streams}")
def test_gradients_are_the_own_ones(group: None, way: Comm) -> None:
    net = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 1))
    plain, model = copy.deepcopy(net), accelerate_ddp(nn.parallel.DistributedDataParallel(net), way)
    x = torch.randn(3, 20)
    for _ in range(3):
        for each in (plain, model):
            each.zero_grad()
            each(x).sum().backward()
        assert all(
            torch.equal(a.grad, b.grad)
            for a, b in zip(plain.parameters(), model.parameters(), strict=True)
        )
    accelerate_ddp(model, Comm())


def test_no_ways_take_turns(group: None) -> None:
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    assert apply(model, Comm(tune=True)) is None
    watch = watch_of(model)
    assert gradient_reducer(model) is None and watch is not None and watch.before_forward is None
