"""Training on two ranks, one of which overflows at times: `overflow_on_ranks.py FOLDER`.

Each process writes what it saw. Every optimizer runs under DistributedDataParallel, where the
gradient of one rank is infinite before the reduction. Two of them also run by hand, where the
gradient becomes infinite after the reduction, on one rank alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from optim.training import OVERFLOW_AT, PAIRS, STEPS, NothingWaits, Pair, batch, model, warmup
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from gallery_lib.comm import process_group
from gallery_lib.optim.grad_scaler import GradScaler
from gallery_lib.optim.updates import Updates
from gallery_lib.system.processes import die_with_parent

BEFORE, AFTER = "before the reduction", "after the reduction, on one rank"
RUNS = [
    *((BEFORE, pair) for pair in PAIRS),
    *((AFTER, pair) for pair in PAIRS if pair.name in ("AdamW", "SGD")),
]
SCALING = {"init_scale": 2.0**10, "growth_interval": 20}


def overflows(step: int, rank: int) -> bool:
    """Return whether this rank overflows; the ranks take turns."""
    return step in OVERFLOW_AT and OVERFLOW_AT.index(step) % 2 == rank


def run(pair: Pair, way: str, rank: int) -> dict[str, list[Any]]:
    """Train, and return what happened in each step.

    This is the loss of the global batch before the step, whether the step was skipped, and scale
    and learning rate after it.
    """
    net = model(torch.float64)
    distributed = nn.parallel.DistributedDataParallel(net) if way == BEFORE else net
    optimizer = pair.ours(net.parameters())
    updates = Updates(optimizer, GradScaler("cpu", **SCALING), LambdaLR(optimizer, warmup), 0.3)
    seen: dict[str, list[Any]] = {"losses": [], "skipped": [], "scales": [], "rates": []}
    now = 0

    def overflow(gradient: Tensor) -> Tensor:
        return gradient.fill_(torch.inf) if way == BEFORE and overflows(now, rank) else gradient

    net[0].weight.register_hook(overflow)
    for now in range(STEPS):
        inputs, labels = batch(now, torch.float64)
        with torch.no_grad():
            seen["losses"].append(nn.functional.cross_entropy(net(inputs), labels).item())
        optimizer.zero_grad()
        half = slice(8 * rank, 8 * rank + 8)
        updates.scaler.scale(
            nn.functional.cross_entropy(distributed(inputs[half]), labels[half])
        ).backward()
        if way == AFTER:
            for parameter in net.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= 2
            if overflows(now, rank):
                net[0].weight.grad.fill_(torch.inf)
        with NothingWaits():
            updates.take()
        assert optimizer.step_was_skipped is not None
        seen["skipped"].append(bool(optimizer.step_was_skipped))
        seen["scales"].append(updates.scaler.get_scale())
        seen["rates"].append(updates.learning_rate())
    return seen


def main(arguments: list[str]) -> None:
    die_with_parent()
    process_group.ensure_initialized()
    torch.set_num_threads(1)
    rank = process_group.rank()
    found = {f"{pair.name}, {way}": run(pair, way, rank) for way, pair in RUNS}
    (Path(arguments[0]) / f"rank{rank}.json").write_text(json.dumps(found))
    process_group.leave()
