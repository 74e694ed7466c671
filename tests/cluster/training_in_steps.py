"""Training in small steps, which test_faults.py starts on the hosts of a lab.

training_in_steps.py STEPS TIMEOUT_SECONDS

It prints each step, and how the training ended: the sum of all weights is that of every rank.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import nn

from gallery_lib.comm import process_group
from gallery_lib.comm.accelerate_ddp import accelerate_ddp
from gallery_lib.config import Comm
from gallery_lib.errors import RunFailed

WIDTH = 64


def train(steps: int) -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    model = accelerate_ddp(
        nn.parallel.DistributedDataParallel(nn.Sequential(*layers)), Comm(streams=2, bucket_mb=0.02)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = torch.Generator().manual_seed(process_group.rank())
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, WIDTH, generator=batches)).pow(2).mean().backward()
        optimizer.step()
        print(f"step {step}", flush=True)
        time.sleep(0.05)  # so that there is time for a fault
    print("weights", sum(p.double().sum().item() for p in model.parameters()), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    process_group.ensure_initialized(float(sys.argv[2]))
    try:
        train(int(sys.argv[1]))
    except RunFailed as failure:
        print(f"error: {failure}", flush=True)
        sys.exit(1)
