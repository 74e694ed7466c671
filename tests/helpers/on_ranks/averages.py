"""Gradients and weights after a few steps: how far they are from the exact ones."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from gallery_lib.comm import process_group
from gallery_lib.comm.accelerate_ddp import (
    accelerate_ddp,
    comm_state_dict,
    load_comm_state_dict,
    step_in_backward,
)
from gallery_lib.comm.ddp import distribute
from gallery_lib.comm.reducer import SharedSlots
from gallery_lib.config import Comm
from on_ranks.models import (
    DDP,
    apart,
    batch,
    equal,
    message_of,
    stack,
    train_step,
)


def relative_error(widths: list[int], values: dict[str, Any], steps: int = 1) -> float:
    """Return the relative error of all mean gradients of the last step together."""
    model = accelerate_ddp(DDP(stack(widths)), Comm(**values))
    for _ in range(steps):
        model.zero_grad()
        model(batch(0, widths[0])).pow(2).sum().backward()
    got = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).double()
    alone = copy.deepcopy(model.module).double()
    alone.zero_grad()
    for rank in range(dist.get_world_size()):
        alone(batch(0, widths[0], rank).double()).pow(2).sum().backward()
    total = torch.cat([parameter.grad.flatten() for parameter in alone.parameters()])
    exact = total / dist.get_world_size()
    return ((got - exact).norm() / exact.norm()).item()


def buckets(values: dict[str, Any]) -> list[int]:
    """Return the bytes of the buckets of the third step, in the order in which they are sent."""
    model = accelerate_ddp(DDP(stack([64] * 5)), Comm(**values))
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
        accelerate_ddp(model, Comm(**values))
        for step in range(3):
            model.zero_grad()
            model(batch(step, 8)).pow(2).sum().backward()
        found.append(len({p.grad.untyped_storage().data_ptr() for p in model.parameters()}))
    return found


def uneven_batches(values: dict[str, Any], early: bool) -> float:
    """Rank r has r + 2 batches; `join` lets the ranks that are done stand by."""
    models = [DDP(stack([6, 9, 4])), DDP(stack([6, 9, 4]))]
    for model in models:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        if model is models[1]:
            accelerate_ddp(model, Comm(**values), optimizer=optimizer if early else None)
        block = early and model is models[1]
        with model.join():
            for step in range(2 + dist.get_rank()):
                optimizer.zero_grad()
                loss = model(batch(step, 6)).pow(2).sum()
                with step_in_backward(model) if block else contextlib.nullcontext():
                    loss.backward()
                optimizer.step()
    return apart(*models)


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
        model = accelerate_ddp(DDP(stack(widths)), Comm(**values))
        steps(model, 0, 1, 2, 3)
        weights = copy.deepcopy(model.module.state_dict())
        kept = copy.deepcopy(comm_state_dict(model))
        steps(model, 4, 5, 6)
        other = accelerate_ddp(DDP(stack(widths)), Comm(**values))
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

    local, _ = process_group.averaging_groups(process_group.find_topology(), True)
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


def refused(values: dict[str, Any], what: str) -> str:
    """Return the message for options that cannot be met."""
    model: Any = DDP(stack([4, 3]))
    optimizer = None
    if what == "plain module":
        model = model.module
    elif what == "own hook":
        model.register_comm_hook(None, default_hooks.allreduce_hook)
    elif what == "sparse":
        model = DDP(nn.Embedding(4, 3, sparse=True))
    elif what == "LBFGS":
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)
    elif what == "own optimizer":
        optimizer = type("Own", (torch.optim.SGD,), {"__module__": "mine"})(model.parameters())
    elif what == "complex":
        model = DDP(nn.Linear(4, 3, dtype=torch.complex64))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    elif what in ("static", "unused"):
        names = {"static": "static_graph", "unused": "find_unused_parameters"}
        model = DDP(model.module, **{names[what]: True})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return message_of(lambda: accelerate_ddp(model, Comm(**values), optimizer=optimizer))


def different_options() -> str:
    model = DDP(stack([6, 4]))
    message = message_of(lambda: accelerate_ddp(model, Comm(streams=1 + dist.get_rank())))
    train_step([model], 0)  # the model is as before
    return message
