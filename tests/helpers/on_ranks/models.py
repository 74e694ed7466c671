"""Small stacks of layers for the other subjects, and batches that differ by rank and step."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gallery_lib.config import Comm

DDP = nn.parallel.DistributedDataParallel


class Branches(nn.Module):
    """Three layers: the rank decides which of the first two is used, and the last is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(7, 5) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[dist.get_rank() % 2](x)


def options_of(values: dict[str, Any]) -> Comm:
    options = Comm()
    for name, value in values.items():
        setattr(options, name, value)
    return options


def stack(widths: list[int]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.Tanh()))
    )


def batch(step: int, width: int, rank: int | None = None, rows: int = 3) -> Tensor:
    rank = dist.get_rank() if rank is None else rank
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(1000 * step + rank))


def own_gradients(model: nn.Module, step: int, width: int, rank: int) -> list[Tensor]:
    """Return the gradients that `rank` has before anything is averaged, in float64."""
    alone = copy.deepcopy(model)
    alone.zero_grad()
    alone(batch(step, width, rank)).pow(2).sum().backward()
    return [parameter.grad.double() for parameter in alone.parameters()]
