"""Gradients that are not finite, and options that cannot be met."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import torch
import torch.distributed as dist

from gallery_lib.comm.accelerate_ddp import accelerate_ddp
from on_ranks.models import DDP, batch, options_of, stack


def not_finite(values: dict[str, Any], bad_rank: int) -> str:
    """Return what is raised when the gradient of one layer is NaN on one rank.

    The hook that makes it NaN is removed, so the next step is an ordinary one.
    """
    model = accelerate_ddp(DDP(stack([60, 90, 40])), options_of({**values, "non_finite": "stop"}))
    handle = model.module[2].weight.register_hook(
        lambda g: g * torch.nan if dist.get_rank() == bad_rank else g
    )
    try:
        model(batch(0, 60)).pow(2).sum().backward()
        return "nothing was raised"
    except Exception as error:
        message = str(error)
    handle.remove()
    return message


def skipped(values: dict[str, Any], bad_rank: int, stand_by: bool) -> dict[str, Any]:
    """Train four steps, of which one has a NaN on one rank and must not change anything.

    Weights, momentum and what is kept for later stay as they are in that step. With `stand_by`,
    rank 0 has no batch any more in the last two steps.
    """
    model = accelerate_ddp(DDP(stack([6, 9, 4])), options_of({**values, "non_finite": "skip"}))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=0.1)
    seen = []
    steps = range(2 if stand_by and dist.get_rank() == 0 else 4)
    with model.join() if stand_by else contextlib.nullcontext():
        for step in steps:
            bad = step == 2 and dist.get_rank() == bad_rank
            handle = model.module[2].weight.register_hook(
                lambda g, bad=bad: g * torch.nan if bad else g
            )
            optimizer.zero_grad()
            model(batch(step, 6)).pow(2).sum().backward()
            handle.remove()
            optimizer.step()
            seen.append([p.detach().clone() for p in model.parameters()])
    moved = [
        any(not torch.equal(a, b) for a, b in zip(one, other, strict=True))
        for one, other in itertools.pairwise(seen)
    ]
    finite = all(
        bool(p.isfinite().all())
        for p in [*model.parameters(), *(s["momentum_buffer"] for s in optimizer.state.values())]
    )
    return {
        "moved": moved,
        "finite": finite,
        "sum": sum(p.double().sum().item() for p in model.parameters()),
    }


def refused(values: dict[str, Any], what: str) -> str:
    """Return the message for options that cannot be met."""
    model: Any = DDP(stack([4, 3]))
    if what == "plain module":
        model = model.module
    elif what == "own hook":
        model.register_comm_hook(None, _own_hook)
    optimizer = None
    if what in ("LBFGS", "SGD"):
        optimizer = getattr(torch.optim, what)(model.parameters(), lr=0.1)
    elif what == "own optimizer":
        optimizer = type("Own", (torch.optim.SGD,), {"__module__": "mine"})(model.parameters())
    elif what == "unused":
        model, optimizer = (
            DDP(model.module, find_unused_parameters=True),
            torch.optim.SGD(model.parameters()),
        )
    try:
        accelerate_ddp(model, options_of(values), optimizer=optimizer)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def _own_hook(state, bucket):  # type: ignore[no-untyped-def]
    return (
        dist.all_reduce(bucket.buffer(), async_op=True)
        .get_future()
        .then(lambda future: future.value()[0])
    )
