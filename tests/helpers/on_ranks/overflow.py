"""Training on two ranks, one of which overflows at times, before or after the reduction."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from optim.training import BY_NAME, OVERFLOW_AT, SCALING, STEPS, NothingWaits, batch, model, warmup
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from gallery_lib.comm import process_group
from gallery_lib.optim.grad_scaler import GradScaler, Updates


def run(name: str, before: bool) -> dict[str, list[Any]]:
    """Train, and return what happened in each step.

    This is the loss of the global batch before the step, the steps skipped so far, and scale
    and learning rate after it. `before` the reduction DistributedDataParallel averages; otherwise
    the gradient becomes infinite after it, on one rank alone.
    """
    net, rank = model(torch.float64), process_group.rank()
    distributed = nn.parallel.DistributedDataParallel(net) if before else net
    optimizer = BY_NAME[name].ours(net.parameters())
    updates = Updates(optimizer, GradScaler("cpu", **SCALING), LambdaLR(optimizer, warmup), 0.3)
    seen: dict[str, list[Any]] = {"losses": [], "skipped": [], "scales": [], "rates": []}

    def overflows(step: int) -> bool:  # the ranks take turns
        return step in OVERFLOW_AT and OVERFLOW_AT.index(step) % 2 == rank

    def overflow(gradient: Tensor) -> Tensor:
        return gradient.fill_(torch.inf) if before and overflows(now) else gradient

    net[0].weight.register_hook(overflow)
    for now in range(STEPS):
        inputs, labels = batch(now, torch.float64)
        with torch.no_grad():
            seen["losses"].append(nn.functional.cross_entropy(net(inputs), labels).item())
        optimizer.zero_grad()
        half = slice(8 * rank, 8 * rank + 8)
        loss = nn.functional.cross_entropy(distributed(inputs[half]), labels[half])
        updates.scaler.scale(loss).backward()
        for parameter in () if before else net.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= 2
        if not before and overflows(now):
            net[0].weight.grad.fill_(torch.inf)
        with NothingWaits():
            updates.take()
        seen["skipped"].append(updates.skipped_steps())
        seen["scales"].append(updates.scaler.get_scale())
        seen["rates"].append(updates.learning_rate())
    return seen
