"""Trainings in which ways of averaging take turns, beside plain DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gallery_lib.comm.tuner import Tuner
from gallery_lib.config import Comm
from on_ranks.models import DDP, batch, stack

WAYS = {
    "ddp": Comm(),
    "views": Comm(bucket_views=True),
    "streams": Comm(streams=2, bucket_mb=0.001),
}
STEPS = len(WAYS) * 4 * (2 + 2)
"""Number of steps of all turns."""


def tuned(model: DDP) -> Tuner:
    return Tuner(model, WAYS, rounds=4, block_steps=2, keep=False)


def trained(
    change: Callable[[DDP], Any], accelerated: bool, steps: int = STEPS + 4
) -> dict[str, Any]:
    """Return the weights after training, the model, and the way that was chosen.

    `change` is given the model before the first step. It may return a function for each step.
    """
    model = DDP(stack([6, 9, 4]))
    if accelerated:
        turns = tuned(model)
    each_step = change(model) or (lambda _: None)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(steps):
        each_step(step)
        optimizer.zero_grad()
        model(batch(step, 6)).pow(2).sum().backward()
        optimizer.step()
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    return {"weights": weights, "model": model, "chosen": turns.choice if accelerated else "ddp"}


def both_outcomes(
    change: Callable[[DDP], Any],
    seen: Callable[[DDP], Any] = lambda model: None,
    steps: int = STEPS + 4,
) -> dict[str, Any]:
    plain, other = (trained(change, accelerated, steps) for accelerated in (False, True))
    return {
        "exact": all(
            torch.equal(a, b) for a, b in zip(plain["weights"], other["weights"], strict=True)
        ),
        "seen": [seen(each["model"]) for each in (plain, other)],
        "chosen": other["chosen"],
    }


def equal(first: nn.Module, second: nn.Module, gradients: bool = False) -> bool:
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.equal(*((a.grad, b.grad) if gradients else (a, b))) for a, b in pairs)


def train_step(
    models: list[Any], step: int, loss: Callable[[nn.Module, int], Tensor] | None = None
) -> None:
    for model in models:
        model.zero_grad()
        (loss(model, step) if loss else model(batch(step, 6)).pow(2).sum()).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= 0.05 * parameter.grad
