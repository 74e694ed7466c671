"""Small models, always with the same weights, and batches that differ by rank and step."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

DDP = nn.parallel.DistributedDataParallel


def image_model() -> nn.Module:
    """Return a convolution, batch norm and a linear layer, for images [N, 3, 8, 8]."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)
    )


def stack(widths: list[int]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.Tanh()))
    )


def small(**arguments: Any) -> DDP:
    """Return a small model in DistributedDataParallel."""
    return DDP(stack([6, 9, 4]), **arguments)


def batch(step: int, width: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    return torch.randn(3, width, generator=generator)


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


def apart(first: nn.Module, second: nn.Module, gradients: bool = False) -> float:
    """Return the largest difference of two models' parameters, or of their gradients."""
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    values = [(a.grad, b.grad) if gradients else (a, b) for a, b in pairs]
    return torch.stack([(a - b).abs().max().double() for a, b in values]).max().item()  # keeps NaN
