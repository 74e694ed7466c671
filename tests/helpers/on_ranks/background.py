"""A training whose compiler works in the background, beside one that is not compiled."""

from __future__ import annotations

import re
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gallery_lib import Config, accelerate
from gallery_lib.acceleration import techniques


def losses(width: int) -> dict[str, Any]:
    """Return the losses of both, the calls that ran uncompiled, and the last weights."""
    answers: dict[str, Any] = {}
    for name in ("losses", "plain"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, width), nn.GELU(), nn.Linear(width, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        config = Config()
        config.compiler.enabled = config.compiler.background = name == "losses"
        config.compiler.background_nice = 0
        model, _, optimizer = accelerate(model, None, optimizer, config)
        generator = torch.Generator().manual_seed(dist.get_rank())
        inputs = torch.randn(6, 4, generator=generator)
        curve: list[float] = []
        answers[name] = curve
        while not _over(model, curve, len(answers["losses"])):
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            optimizer.step()
            curve.append(loss.item())
            if name == "losses":
                time.sleep(0.2)
                done = techniques(model)["compiler"]
                if found := re.search(r"first (\d+) calls ran uncompiled", done):
                    answers["uncompiled"] = int(found[1])
                answers["weights"] = [p.sum().item() for p in model.parameters()]
    return answers


def _over(model: nn.Module, curve: list[float], steps: int) -> bool:
    """Return whether the training is over on all ranks: two steps after the last went over."""
    if "compiler" not in techniques(model):
        return len(curve) == steps
    over = torch.tensor(int("uncompiled" in techniques(model)["compiler"]))
    dist.all_reduce(over)
    return bool(over == dist.get_world_size())
