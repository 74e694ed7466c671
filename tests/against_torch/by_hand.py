"""DistributedDataParallel's work done by hand, as the oracle of several processes.

Gradients are gathered, summed in the order of ranks and divided, in their own dtype. Before a
forward pass every rank gets rank 0's buffers, except after a pass without gradients or under
`no_sync`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def share(model: nn.Module) -> None:
    """Broadcast rank 0's parameters and buffers now, and its buffers before each forward pass.

    This is a collective call. `model` also gets a `no_sync` context manager, and a `module` that
    can be called without any communication, unless it has one of its own.
    """
    state = {"before": True, "average": True}
    with torch.no_grad():
        _from_rank_0([*model.parameters(), *model.buffers()])

    @torch.compiler.disable
    def before(module: nn.Module, _: Any) -> None:
        if module is model and state["before"]:
            _from_rank_0(list(module.buffers()))

    @torch.compiler.disable
    def after(module: nn.Module, *_: Any) -> None:
        if module is model:
            state["before"] = torch.is_grad_enabled() and state["average"]

    @contextlib.contextmanager
    def no_sync() -> Iterator[None]:
        state["average"] = False
        try:
            yield
        finally:
            state["average"] = True

    def alone(*arguments: Any, **more: Any) -> Any:
        kept = dict(state)
        state["before"] = False
        try:
            return model(*arguments, **more)
        finally:
            state.update(kept)

    model.register_forward_pre_hook(before, prepend=True)
    model.register_forward_hook(after)
    object.__setattr__(model, "no_sync", no_sync)
    if not hasattr(model, "module"):
        object.__setattr__(model, "module", alone)


def _from_rank_0(tensors: list[torch.Tensor]) -> None:
    box = [[t.detach().clone() for t in tensors]]
    dist.broadcast_object_list(box, src=0)
    with torch.no_grad():
        for mine, right in zip(tensors, box[0], strict=True):
            mine.copy_(right)


def average(model: nn.Module) -> None:
    """Replace gradients by their mean over the ranks. This is a collective call."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    ranks: list[Any] = [None] * dist.get_world_size()
    # Each rank sums its entries of a row first, as Gloo does.
    mine = [
        p.grad.coalesce() if p.grad is not None and p.grad.is_sparse else p.grad for p in parameters
    ]
    dist.all_gather_object(ranks, mine)
    for p, gradients in zip(parameters, zip(*ranks, strict=True), strict=True):
        there = [g for g in gradients if g is not None]
        if there:
            mean = sum(there[1:], start=there[0]) / len(ranks)
            p.grad = mean if p.grad is None or mean.is_sparse else p.grad.copy_(mean)
