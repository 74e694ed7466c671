"""A rank of a run on several fake devices: each way to average gradients gives their mean.

test_device.py starts it with torchrun. Rank 0 prints a line for each way, and `FAILED` for a wrong
one. With the word `captured` the rank trains an accelerated model by captured graphs instead, and
plain DDP beside it. With two arguments, a file and the folder of a run, it trains the tiny task,
and rank 0 writes the run's timeline to the file.
"""

from __future__ import annotations

import contextlib
import copy
import os
import sys
from pathlib import Path

import tiny_task
import torch
from fake_gpu import plugin, work
from stand_in_compilers import capture_graphs, leave_eager

from gallery_lib import Config, accelerate
from gallery_lib.comm import process_group
from gallery_lib.comm.accelerate_ddp import accelerate_ddp
from gallery_lib.compiler import backend
from gallery_lib.config import Comm
from gallery_lib.measure.replay import Recorder, write_timeline
from gallery_lib.optim.grad_scaler import GradScaler
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


def trained(accelerated: bool, fp16: bool, accumulate: int) -> list[torch.Tensor]:
    """Return losses and weights of steps whose gradients are scaled, clipped and accumulated."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", rank)
    config, net = Config(), model()
    config.compute.fp16 = fp16
    if accelerated:
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        net, optimizer = accelerate(net, optimizer, config)
    else:
        net = torch.nn.parallel.DistributedDataParallel(net.to(device), device_ids=[rank])
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    scaler = (GradScaler if accelerated else torch.amp.GradScaler)("cuda", init_scale=2.0**10)
    draw, losses = torch.Generator().manual_seed(2), []
    for step in range(8):
        optimizer.zero_grad()
        for part in range(accumulate):
            size = 4 if step in (3, 7) else 8  # the last batch of an epoch
            batch = torch.randn(world, size, 40, generator=draw)[rank].to(device)
            if step == 5 and rank == 1:
                batch = batch * 1e20  # one rank's gradients overflow
            synced = contextlib.nullcontext() if part == accumulate - 1 else net.no_sync()
            with synced, torch.autocast("cuda", torch.float16, enabled=fp16):
                loss = net(batch).float().square().mean() / accumulate
                scaler.scale(loss).backward()
            losses.append(loss.detach())
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return [torch.stack(losses).cpu(), *(p.detach().cpu() for p in net.parameters())]


def captured() -> bool:
    """Return whether accelerated ranks with captured graphs train as plain ones do."""
    backend._compile = capture_graphs
    right = True
    for fp16, accumulate in ((False, 1), (True, 1), (True, 2)):
        before = work.counts()["call cudaGraphLaunch"]
        ours = trained(True, fp16, accumulate)
        replays = work.counts()["call cudaGraphLaunch"] - before
        theirs = trained(False, fp16, accumulate)
        near = all(
            torch.allclose(
                a, b, rtol=1e-2 if fp16 else 1e-4, atol=1e-3 if fp16 else 1e-5, equal_nan=True
            )
            for a, b in zip(ours, theirs, strict=True)
        )
        good = near and replays >= 8 and not work.failures()
        right = right and good
        if os.environ["RANK"] == "0" or not good:
            verdict = "" if good else " FAILED"
            print(f"fp16 {fp16}, {accumulate} batches: {replays} replays{verdict}", flush=True)
    return right


if __name__ == "__main__":
    plugin.install()
    os.environ.update(GALLERY_COMPILER_OPT="1", GALLERY_KERNELS="1")
    if sys.argv[1:] == ["captured"]:
        sys.exit(not captured())
    if sys.argv[1:]:
        record(Path(sys.argv[1]), sys.argv[2])
    elif not average():
        sys.exit(1)
    sys.exit(len(work.failures()))
