"""Roads by which gradients come: one loss or two, other graphs, frozen layers, penalties."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Net(nn.Module):
    """Model with an encoder and two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head, self.probe = nn.Linear(3, 4), nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.encoder(x)
        return self.head(hidden), self.probe(hidden.detach())


def net_of_two_heads() -> Net:
    torch.manual_seed(0)
    return Net()


def inputs(rank: int | None = None, call: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(
        10 * call + (dist.get_rank() if rank is None else rank)
    )
    return torch.randn(5, 3, generator=generator)


def one_loss(model: Any, rank: int | None) -> None:
    head, probe = model(inputs(rank))
    (head.sum() + probe.square().sum()).backward()


def two_backward_passes(model: Any, rank: int | None) -> None:
    head, probe = model(inputs(rank))
    head.sum().backward()  # encoder and head
    probe.square().sum().backward()  # the probe alone


def two_calls_two_losses(model: Any, rank: int | None) -> None:
    losses = [sum(out.square().sum() for out in model(inputs(rank, call))) for call in range(2)]
    for loss in losses:
        loss.backward()


def the_same_graph_twice(model: Any, rank: int | None) -> None:
    loss = sum(out.square().sum() for out in model(inputs(rank)))
    loss.backward(retain_graph=True)
    loss.backward()


def accumulated(model: Any, rank: int | None) -> None:
    with model.no_sync() if hasattr(model, "no_sync") else contextlib.nullcontext():
        one_loss(model, rank)
    one_loss(model, rank)


def unfrozen_later(model: Any, rank: int | None) -> None:
    model.encoder.requires_grad_(False)
    one_loss(model, rank)
    model.encoder.requires_grad_(True)
    model.zero_grad()
    one_loss(model, rank)


def frozen_later(model: Any, rank: int | None) -> None:
    one_loss(model, rank)
    model.zero_grad()
    model.encoder.requires_grad_(False)
    one_loss(model, rank)


def gradient_penalty(model: Any, rank: int | None) -> None:
    x = inputs(rank).requires_grad_()
    head, probe = model(x)
    (slope,) = torch.autograd.grad(head.square().sum(), x, create_graph=True)
    (slope.square().sum() + head.sum() + probe.sum()).backward()


def laid_out_anew(model: Any, rank: int | None) -> None:
    model.to(torch.float64 if model.head.weight.dtype is torch.float32 else torch.float32)
    with torch.no_grad():
        model.encoder.weight.set_(model.encoder.weight.T.contiguous().T)
    x = inputs(rank).to(model.head.weight.dtype)
    sum(out.square().sum() for out in model(x)).backward()
    for parameter in model.parameters():
        parameter.grad = None
    sum(out.square().sum() for out in model(x)).backward()


ROADS = {
    road.__name__: road
    for road in (
        one_loss,
        two_backward_passes,
        two_calls_two_losses,
        the_same_graph_twice,
        accumulated,
        unfrozen_later,
        frozen_later,
        gradient_penalty,
        laid_out_anew,
    )
}
