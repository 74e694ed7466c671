"""Gradients of a few steps: how far their means are from the exact ones, and what is sent."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from gallery_lib.comm import process_group
from gallery_lib.comm.accelerate_ddp import accelerate_ddp
from gallery_lib.comm.strategy import gradient_reducer
from gallery_lib.config import Comm
from on_ranks.models import DDP, Branches, batch, options_of, own_gradients, stack


def gradients(widths: list[int], values: dict[str, Any], steps: int = 3) -> dict[str, Any]:
    """Return the worst errors of a mean gradient, and whether all ranks have the same bits.

    Errors are from the exact mean and from plain DDP, in units of what rounding may come to. The
    sum of n terms in any order differs from the exact one by at most (n - 1)·u·Σ|term| (Higham,
    Accuracy and Stability of Numerical Algorithms, 4.2), and u = eps / 2. Dividing by n adds one
    rounding.
    """
    model = accelerate_ddp(DDP(stack(widths)), options_of(values))
    plain = DDP(stack(widths))
    worst = against_plain = 0.0
    for step in range(steps):
        for each in (model, plain):
            each.zero_grad()
            each(batch(step, widths[0])).pow(2).sum().backward()
        terms = [
            own_gradients(model.module, step, widths[0], rank)
            for rank in range(dist.get_world_size())
        ]
        for parameter, other, *own in zip(
            model.parameters(), plain.parameters(), *terms, strict=True
        ):
            # n·u·Σ|term| / n
            unit = torch.finfo(torch.float32).eps / 2 * sum(term.abs() for term in own) + 1e-40
            worst = max(worst, ((parameter.grad - sum(own) / len(own)).abs() / unit).max().item())
            against_plain = max(
                against_plain, ((parameter.grad - other.grad).abs() / unit).max().item()
            )
    same = process_group.all_ranks(
        [parameter.grad.sum().item() for parameter in model.parameters()]
    )
    accelerate_ddp(model, Comm())  # ends its threads
    return {
        "worst": worst,
        "against_plain": against_plain,
        "same": all(each == same[0] for each in same),
    }


def bucket_bytes(widths: list[int], values: dict[str, Any]) -> list[int]:
    """Return the bytes of the buckets of the third step, in the order in which they are sent."""
    model = accelerate_ddp(DDP(stack(widths)), options_of(values))
    seen: list[int] = []

    def take(state, bucket):  # torch looks at annotations
        seen.append(bucket.buffer().nbytes)
        return default_hooks.allreduce_hook(None, bucket)

    model.register_comm_hook(None, take)
    for step in range(3):
        seen.clear()
        model(batch(step, widths[0])).pow(2).sum().backward()
    return list(seen)


def gradient_memories(made_with: dict[str, bool], ways: list[dict[str, Any]]) -> list[int]:
    """Return in how many storages the gradients of a model with two parameters lie, way after way.

    They lie in one storage where they are views of a bucket.
    """
    model, found = DDP(stack([8, 8]), **made_with), []
    for values in ways:
        model.zero_grad()
        accelerate_ddp(model, options_of(values))
        for step in range(3):
            model.zero_grad()
            model(batch(step, 8)).pow(2).sum().backward()
        found.append(
            len({parameter.grad.untyped_storage().data_ptr() for parameter in model.parameters()})
        )
    accelerate_ddp(model, Comm())  # ends its threads
    return found


def piece_bytes(widths: list[int], values: dict[str, Any]) -> list[list[int]]:
    """Return the bytes of each piece that each channel averages in the third step."""
    model = accelerate_ddp(DDP(stack(widths)), options_of(values))
    channels = gradient_reducer(model)._channels
    seen: list[list[int]] = [[] for _ in channels]
    for channel, sizes in zip(channels, seen, strict=True):

        def average_(key, buffer, *others, channel=channel, sizes=sizes):
            sizes.append(buffer.nbytes)
            type(channel).average_(channel, key, buffer, *others)

        channel.average_ = average_
    for step in range(3):
        for sizes in seen:
            sizes.clear()
        model(batch(step, widths[0])).pow(2).sum().backward()
    accelerate_ddp(model, Comm())
    return seen


def relative_error(widths: list[int], values: dict[str, Any]) -> float:
    """Return the relative error of all mean gradients of one step together."""
    model = accelerate_ddp(DDP(stack(widths)), options_of(values))
    model(batch(0, widths[0])).pow(2).sum().backward()
    got = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).double()
    terms = [
        torch.cat([g.flatten() for g in own_gradients(model.module, 0, widths[0], r)])
        for r in range(dist.get_world_size())
    ]
    exact = sum(terms) / len(terms)
    return ((got - exact).norm() / exact.norm()).item()


def unused_parameters(values: dict[str, Any]) -> float:
    torch.manual_seed(0)
    models = [DDP(Branches(), find_unused_parameters=True)]
    models.append(
        accelerate_ddp(
            DDP(copy.deepcopy(models[0].module), find_unused_parameters=True), options_of(values)
        )
    )
    for step in range(3):
        for model in models:
            model.zero_grad(set_to_none=False)
            model(batch(step, 7)).pow(2).sum().backward()
    pairs = zip(models[0].parameters(), models[1].parameters(), strict=True)
    return max(
        0.0 if a.grad is None and b.grad is None else (a.grad - b.grad).abs().max().item()
        for a, b in pairs
    )


def accumulation(values: dict[str, Any]) -> float:
    """Return the largest difference from plain DDP with gradient accumulation.

    Two backward passes run under no_sync, a third with communication.
    """
    models = [DDP(stack([6, 9, 4])), accelerate_ddp(DDP(stack([6, 9, 4])), options_of(values))]
    for model in models:
        for step in range(3):
            with model.no_sync() if step < 2 else torch.enable_grad():
                model(batch(step, 6)).pow(2).sum().backward()
    return max(
        (a.grad - b.grad).abs().max().item()
        for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True)
    )
