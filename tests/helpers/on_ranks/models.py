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


def small(**arguments: Any) -> DDP:
    """Return a small model in DistributedDataParallel, always with the same weights."""
    return DDP(stack([6, 9, 4]), **arguments)


def batch(step: int, width: int = 6, rank: int | None = None) -> Tensor:
    rank = dist.get_rank() if rank is None else rank
    return torch.randn(3, width, generator=torch.Generator().manual_seed(1000 * step + rank))


def loss(model: Any, step: int, width: int = 6) -> Tensor:
    return model(batch(step, width)).pow(2).sum()


def train_step(models: list[Any], step: int, width: int = 6, rate: float = 0.05) -> None:
    for model in models:
        model.zero_grad()
        loss(model, step, width).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= rate * parameter.grad


def message_of(function: Callable[[], Any]) -> str:
    """Return what the function raises, as one line with the type."""
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def _pairs(first: nn.Module, second: nn.Module, gradients: bool) -> list[tuple[Any, Any]]:
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return [(a.grad, b.grad) if gradients else (a, b) for a, b in pairs]


def equal(first: nn.Module, second: nn.Module, gradients: bool = False) -> bool:
    return all(torch.equal(a, b) for a, b in _pairs(first, second, gradients))


def apart(first: nn.Module, second: nn.Module, gradients: bool = False) -> float:
    """Return the largest difference of two models' parameters, or of their gradients."""
    return max((a - b).abs().max().item() for a, b in _pairs(first, second, gradients))
