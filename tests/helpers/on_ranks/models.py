"""Small models, and batches that differ by rank and step."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

DDP = nn.parallel.DistributedDataParallel


def stack(widths: list[int]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.Tanh()))
    )


def batch(step: int, width: int, rank: int | None = None, rows: int = 3) -> Tensor:
    rank = dist.get_rank() if rank is None else rank
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(1000 * step + rank))


def message_of(function: Callable[[], Any]) -> str:
    """Return what the function raises, as one line with the type."""
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def equal(first: nn.Module, second: nn.Module, gradients: bool = False) -> bool:
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.equal(*((a.grad, b.grad) if gradients else (a, b))) for a, b in pairs)


def apart(first: nn.Module, second: nn.Module, gradients: bool = False) -> float:
    """Return the largest difference of two models' parameters, or of their gradients."""
    pairs = [
        (a.grad, b.grad) if gradients else (a, b)
        for a, b in zip(first.parameters(), second.parameters(), strict=True)
    ]
    return max(
        0.0 if a is None and b is None else (a - b).abs().max().item()  # type: ignore[operator]
        for a, b in pairs
    )


def train_step(
    models: list[Any],
    step: int,
    loss: Callable[[nn.Module, int], Tensor] | None = None,
    rate: float = 0.05,
) -> None:
    for model in models:
        model.zero_grad()
        (loss(model, step) if loss else model(batch(step, 6)).pow(2).sum()).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= rate * parameter.grad
