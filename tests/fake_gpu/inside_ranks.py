"""A rank of a run on several fake devices: each way to average gradients gives their mean.

test_device.py starts it with torchrun. Rank 0 prints a line for each way, and `FAILED` for a wrong
one. With two arguments, a file and the folder of a run, the rank trains the tiny task instead, and
rank 0 writes the run's timeline to the file.
"""

from __future__ import annotations

import copy
import os
import sys
from pathlib import Path

import tiny_task
import torch
from fake_gpu import plugin, work
from stand_in_compilers import leave_eager

from gallery_lib.comm import process_group
from gallery_lib.comm.accelerate_ddp import accelerate_ddp
from gallery_lib.compiler import backend
from gallery_lib.config import Comm
from gallery_lib.measure.replay import Recorder, write_timeline
from gallery_lib.train.loop import train

WAYS: dict[str, tuple[float, dict]] = {
    "DDP's own": (1e-5, {}),
    "bucket views": (1e-5, {"bucket_views": True}),
    "two streams": (1e-5, {"streams": 2, "bucket_mb": 0.01}),
    "bf16": (2e-2, {"wire": "bf16"}),
    "fp16": (2e-2, {"wire": "fp16"}),
    "int8": (5e-2, {"wire": "int8", "streams": 2, "bucket_mb": 0.02}),
}
STEPS = 4


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(40, 64), torch.nn.ReLU(), torch.nn.Linear(64, 300), torch.nn.ReLU(),
        torch.nn.Linear(300, 5),
    )  # fmt: skip


def gradients(net: torch.nn.Module, batch: torch.Tensor) -> list[torch.Tensor]:
    net.zero_grad()
    net(batch).square().mean().backward()
    return [parameter.grad.cpu().clone() for parameter in net.parameters()]


def record(file: Path, run_dir: str) -> None:
    """Train, and record when gradients are ready; the model stays as it is."""
    backend._compile = leave_eager
    recorder = Recorder(2)
    results = train(
        tiny_task.config(max_steps=5, compiler_opt=True, evaluate=False, run_dir=run_dir), recorder
    )
    if os.environ["RANK"] == "0":
        write_timeline(file, recorder.timeline)
        print(f"world size {results.world_size}, {results.environment['device']}")


def average() -> bool:
    """Try every way; return whether all were right on this rank."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    process_group.ensure_initialized()
    device = process_group.device()
    own = torch.device("cuda", rank if torch.cuda.device_count() > 1 else 0)
    assert (device, plugin.devices_of_groups) == (own, [own]), (device, plugin.devices_of_groups)
    batches = torch.randn(world, 8, 40, generator=torch.Generator().manual_seed(1))
    of_ranks = [gradients(copy.deepcopy(model()), batch) for batch in batches]
    mean = [sum(each) / world for each in zip(*of_ranks, strict=True)]
    wrong = 0
    for name, (tolerance, options) in WAYS.items():
        net = torch.nn.parallel.DistributedDataParallel(
            model().to(device), device_ids=[device.index]
        )
        accelerate_ddp(net, Comm(**options))
        for _ in range(STEPS):
            found = gradients(net, batches[rank].to(device))
        error = max(((a - b).norm() / b.norm()).item() for a, b in zip(found, mean, strict=True))
        right = error <= tolerance and not work.failures()
        wrong += not right
        if rank == 0 or not right:
            print(f"{name}: relative error {error:.1e}{'' if right else ' FAILED'}", flush=True)
    process_group.leave()
    return wrong == 0


if __name__ == "__main__":
    plugin.install()
    os.environ.update(GALLERY_COMPILER_OPT="1", GALLERY_KERNELS="1")
    if sys.argv[1:]:
        record(Path(sys.argv[1]), sys.argv[2])
    elif not average():
        sys.exit(1)
    sys.exit(len(work.failures()))
