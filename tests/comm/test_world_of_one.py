"""In a process group of one nothing is averaged and nothing is rounded."""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch import nn

from gallery_lib.comm.accelerate_ddp import accelerate_ddp, gradient_reducer
from gallery_lib.comm.tuner import apply
from gallery_lib.config import Comm

WAYS = [
    *(Comm(wire=wire) for wire in ("bf16", "int8")),
    Comm(streams=2, hierarchical=True, bucket_views=True),
]


def test_gradients_are_the_own_ones_and_no_ways_take_turns() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for way in WAYS:
            net = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 1))
            plain = copy.deepcopy(net)
            model = accelerate_ddp(nn.parallel.DistributedDataParallel(net), way)
            x = torch.randn(3, 20)
            for _ in range(3):
                for each in (plain, model):
                    each.zero_grad()
                    each(x).sum().backward()
                for a, b in zip(plain.parameters(), model.parameters(), strict=True):
                    assert torch.equal(a.grad, b.grad)
            accelerate_ddp(model, Comm())
        assert apply(model, Comm(tune=True)) is None and gradient_reducer(model) is None
    finally:
        dist.destroy_process_group()
