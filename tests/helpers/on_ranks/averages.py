"""Gradients and weights after a few steps: how far they are from the exact ones."""

from __future__ import annotations

import contextlib
import copy
import itertools
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from gallery_lib.comm import process_group, topology
from gallery_lib.comm.accelerate_ddp import accelerate_ddp, comm_state_dict, load_comm_state_dict
from gallery_lib.comm.channel import SharedSlots
from gallery_lib.comm.ddp import distribute
from gallery_lib.config import Comm
from on_ranks.models import (
    DDP,
    Branches,
    apart,
    batch,
    equal,
    message_of,
    options_of,
    own_gradients,
    stack,
    train_step,
)


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
    same = process_group.all_ranks([p.grad.sum().item() for p in model.parameters()])
    accelerate_ddp(model, Comm())  # ends its threads
    return {
        "worst": worst,
        "against_plain": against_plain,
        "same": all(each == same[0] for each in same),
    }


def relative_error(widths: list[int], values: dict[str, Any], steps: int = 1) -> float:
    """Return the relative error of all mean gradients of the last step together."""
    model = accelerate_ddp(DDP(stack(widths)), options_of(values))
    for _ in range(steps):
        model.zero_grad()
        model(batch(0, widths[0])).pow(2).sum().backward()
    got = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).double()
    terms = [
        torch.cat([g.flatten() for g in own_gradients(model.module, 0, widths[0], r)])
        for r in range(dist.get_world_size())
    ]
    exact = sum(terms) / len(terms)
    return ((got - exact).norm() / exact.norm()).item()


def buckets(values: dict[str, Any]) -> list[int]:
    """Return the bytes of the buckets of the third step, in the order in which they are sent."""
    model = accelerate_ddp(DDP(stack([64] * 5)), options_of(values))
    seen: list[int] = []

    def take(state, bucket):  # torch looks at annotations
        seen.append(bucket.buffer().nbytes)
        return default_hooks.allreduce_hook(None, bucket)

    model.register_comm_hook(None, take)
    for step in range(3):
        seen.clear()
        model(batch(step, 64)).pow(2).sum().backward()
    return list(seen)


def gradient_memories(made_with: dict[str, bool], ways: list[dict[str, Any]]) -> list[int]:
    """Return in how many storages the gradients of a model with two parameters lie, way after way.

    They lie in one storage where they are views of a bucket.
    """
    model, found = DDP(stack([8, 8]), **made_with), []
    for values in [*ways, {}]:
        model.zero_grad()
        accelerate_ddp(model, options_of(values))
        for step in range(3):
            model.zero_grad()
            model(batch(step, 8)).pow(2).sum().backward()
        found.append(len({p.grad.untyped_storage().data_ptr() for p in model.parameters()}))
    return found


def unused_parameters(values: dict[str, Any]) -> float:
    torch.manual_seed(0)
    net = Branches()
    models = [DDP(each, find_unused_parameters=True) for each in (net, copy.deepcopy(net))]
    accelerate_ddp(models[1], options_of(values))
    for step in range(3):
        for model in models:
            model.zero_grad(set_to_none=False)
            model(batch(step, 7)).pow(2).sum().backward()
    return apart(*models, gradients=True)


def accumulation(values: dict[str, Any]) -> float:
    """Two backward passes run under no_sync, a third with communication."""
    models = [DDP(stack([6, 9, 4])), accelerate_ddp(DDP(stack([6, 9, 4])), options_of(values))]
    for model in models:
        for step in range(3):
            with model.no_sync() if step < 2 else contextlib.nullcontext():
                model(batch(step, 6)).pow(2).sum().backward()
    return apart(*models, gradients=True)


def uneven_batches(values: dict[str, Any]) -> float:
    """Rank r has r + 2 batches; `join` lets the ranks that are done stand by."""
    models = [DDP(stack([6, 9, 4])), accelerate_ddp(DDP(stack([6, 9, 4])), options_of(values))]
    for model in models:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with model.join():
            for step in range(2 + dist.get_rank()):
                optimizer.zero_grad()
                model(batch(step, 6)).pow(2).sum().backward()
                optimizer.step()
    return apart(*models)


def two_models_one_frozen_midway(values: dict[str, Any]) -> float:
    """Two models train in one step; from the third step on a layer of the first is frozen.

    That model is wrapped anew.
    """
    trained = []
    for accelerated in (False, True):
        models = nn.ModuleList([stack([6, 9, 4]), stack([4, 8, 2])])

        def wrap(model: nn.Module, accelerated: bool = accelerated) -> nn.Module:
            return accelerate_ddp(DDP(model), options_of(values)) if accelerated else DDP(model)

        first, second = (wrap(model) for model in models)
        for step in range(4):
            if step == 2:
                models[0][0].requires_grad_(False)
                first = wrap(models[0])
            both = nn.Sequential(first, second)
            train_step([both], step, rate=0.01)
        trained.append(models)
    return apart(*trained)


def compiled(widths: list[int]) -> dict[str, Any]:
    """Return the number of graphs of a compiled model, and how far off its mean gradients are."""
    graphs = 0

    def backend(graph, inputs):
        nonlocal graphs
        graphs += 1
        return graph.forward

    model, plain = stack(widths), DDP(stack(widths))
    model.compile(backend=backend)
    averaged = distribute(model, torch.device("cpu"), Comm())
    worst = 0.0
    for step in range(3):
        for each in (averaged, plain):
            each.zero_grad()
            each(batch(step, widths[0])).pow(2).sum().backward()
        worst = max(worst, apart(model, plain, gradients=True))
    return {"graphs": graphs, "apart": worst}


def resumed(values: dict[str, Any]) -> list[bool]:
    """Return whether three more steps after a checkpoint are those that would have come without it.

    The first value is with what comm keeps, the second without.
    """
    same, widths = [], [64, 40, 30]

    def steps(model: nn.Module, *numbers: int) -> None:
        for step in numbers:
            train_step([model], step, lambda m, s: m(batch(s, widths[0])).pow(2).mean(), 0.1)

    for keep in (True, False):
        model = accelerate_ddp(DDP(stack(widths)), options_of(values))
        steps(model, 0, 1, 2, 3)
        weights = copy.deepcopy(model.module.state_dict())
        kept = copy.deepcopy(comm_state_dict(model))
        steps(model, 4, 5, 6)
        other = accelerate_ddp(DDP(stack(widths)), options_of(values))
        steps(other, 0)  # DDP orders its buckets at the first step
        other.module.load_state_dict(weights)
        if keep:
            load_comm_state_dict(other, kept)
        steps(other, 4, 5, 6)
        same.append(equal(model, other))
    return same


def shared_memory(failing_rank: int | None) -> dict[str, Any]:
    """Return what ranks of a host see in the memory that they share, or the error.

    `names` are the names that the file behind it has, when it is opened.
    """
    names, open_file = [], torch.from_file

    def opened(path: str, **options: Any) -> torch.Tensor:
        names.append(Path(path).stat().st_nlink)
        if dist.get_rank() == failing_rank:
            raise RuntimeError("made to fail")
        return open_file(path, **options)

    local, _ = topology.groups(topology.find())
    assert local is not None
    slots, seen = SharedSlots(local), []
    try:
        with mock.patch.object(torch, "from_file", opened):
            for size in (3, 300):
                rows = slots.of(size, torch.float32)
                rows[dist.get_rank(local)].fill_(dist.get_rank())
                slots.meet()
                seen.append(rows[: dist.get_world_size(local)].mean(1).tolist())
                slots.meet()
    except Exception as error:
        return {"message": f"{type(error).__name__}: {error}"}
    return {"seen": seen, "names": names}


# --------------------------------------------------------------------------------------------------
# Gradients that are not finite, and options that cannot be met.


def not_finite(values: dict[str, Any], bad_rank: int) -> str:
    """Return what is raised when the gradient of one layer is NaN on one rank."""
    model = accelerate_ddp(DDP(stack([60, 90, 40])), options_of({**values, "non_finite": "stop"}))
    model.module[2].weight.register_hook(
        lambda g: g * torch.nan if dist.get_rank() == bad_rank else g
    )
    return message_of(lambda: model(batch(0, 60)).pow(2).sum().backward())


def skipped(values: dict[str, Any], bad_rank: int, stand_by: bool) -> dict[str, Any]:
    """Train six steps, of which one has a NaN on one rank and must not change anything.

    Weights, momentum and what is kept for later stay as they are in that step. With `stand_by`,
    rank 0 has no batch any more in the last two steps.
    """
    model = accelerate_ddp(DDP(stack([6, 9, 4])), options_of({**values, "non_finite": "skip"}))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=0.1)
    seen = []
    steps = range(4 if stand_by and dist.get_rank() == 0 else 6)
    with model.join() if stand_by else contextlib.nullcontext():
        for step in steps:
            bad = step == 4 and dist.get_rank() == bad_rank
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
        for one, other in itertools.pairwise(seen[2:])
    ]
    kept = [*model.parameters(), *(s["momentum_buffer"] for s in optimizer.state.values())]
    return {
        "moved": moved,
        "finite": all(bool(value.isfinite().all()) for value in kept),
        "sum": sum(p.double().sum().item() for p in model.parameters()),
    }


def refused(values: dict[str, Any], what: str) -> str:
    """Return the message for options that cannot be met."""
    model: Any = DDP(stack([4, 3]))
    optimizer = None
    if what == "plain module":
        model = model.module
    elif what == "own hook":
        model.register_comm_hook(None, default_hooks.allreduce_hook)
    elif what == "complex":
        model = DDP(nn.Linear(4, 3, dtype=torch.complex64))
    elif what == "LBFGS":
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)
    elif what == "own optimizer":
        optimizer = type("Own", (torch.optim.SGD,), {"__module__": "mine"})(model.parameters())
    elif what in ("SGD", "unused"):
        model = DDP(model.module, find_unused_parameters=what == "unused")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return message_of(lambda: accelerate_ddp(model, options_of(values), optimizer=optimizer))


def different_options() -> str:
    model = DDP(stack([6, 4]))
    message = message_of(lambda: accelerate_ddp(model, Comm(streams=1 + dist.get_rank())))
    train_step([model], 0)  # the model is as before
    return message
