"""Trainings of several steps, beside the same with plain DDP.

They have uneven batches, frozen layers, several optimizers, or checkpoints.
"""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gallery_lib.comm.accelerate_ddp import (
    accelerate_ddp,
    comm_state_dict,
    load_comm_state_dict,
    step_in_backward,
)
from gallery_lib.comm.ddp import distribute
from gallery_lib.config import Comm
from on_ranks.models import DDP, batch, options_of, stack


def compiled(widths: list[int]) -> dict[str, Any]:
    """Return the number of graphs of a compiled model, and how far off its mean gradients are.

    They are compared with those of a model that is not compiled.
    """
    graphs = 0

    def backend(graph, inputs):
        nonlocal graphs
        graphs += 1
        return graph.forward

    model, plain = stack(widths), DDP(stack(widths))
    model.compile(backend=backend)
    averaged = distribute(model, torch.device("cpu"), Comm())
    apart = 0.0
    for step in range(3):
        for each in (averaged, plain):
            each.zero_grad()
            each(batch(step, widths[0])).pow(2).sum().backward()
        for parameter, other in zip(model.parameters(), plain.parameters(), strict=True):
            apart = max(apart, (parameter.grad - other.grad).abs().max().item())
    return {"graphs": graphs, "apart": apart}


def uneven_batches(values: dict[str, Any]) -> list[float]:
    """Return the sum of all weights after training: with plain DDP, and accelerated.

    Rank r has r + 2 batches; `join` lets the ranks that are done stand by.
    """
    sums = []
    for accelerated in (False, True):
        model = DDP(stack([6, 9, 4]))
        if accelerated:
            accelerate_ddp(model, options_of(values))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with model.join():
            for step in range(2 + dist.get_rank()):
                optimizer.zero_grad()
                model(batch(step, 6)).pow(2).sum().backward()
                optimizer.step()
        sums.append(sum(parameter.double().abs().sum().item() for parameter in model.parameters()))
    return sums


def two_models_one_frozen_midway(values: dict[str, Any]) -> float:
    """Return the largest difference of weights from plain DDP, where two models train in one step.

    From the third step on a layer of the first model is frozen, and that model is wrapped anew.
    """
    weights = []
    for accelerated in (False, True):
        models = [stack([6, 9, 4]), stack([4, 8, 2])]

        def wrap(model: nn.Module, accelerated: bool = accelerated) -> nn.Module:
            return accelerate_ddp(DDP(model), options_of(values)) if accelerated else DDP(model)

        first, second = (wrap(model) for model in models)
        for step in range(4):
            if step == 2:
                models[0][0].requires_grad_(False)
                first = wrap(models[0])
            for model in models:
                model.zero_grad()
            second(first(batch(step, 6))).pow(2).sum().backward()
            with torch.no_grad():
                for model in models:
                    for parameter in model.parameters():
                        if parameter.grad is not None:
                            parameter -= 0.01 * parameter.grad
        weights.append(
            [parameter.detach().clone() for model in models for parameter in model.parameters()]
        )
    return max((a - b).abs().max().item() for a, b in zip(*weights, strict=True))


def early_steps(
    optimizer: str, arguments: dict[str, Any], values: dict[str, Any], uneven: bool = False
) -> dict[str, Any]:
    """Compare training with optimizer-in-backward with plain DDP.

    There are two parameter groups, a schedule, and gradient accumulation. With `uneven`, ranks have
    different numbers of batches instead of the accumulation.
    """
    models, moved = [DDP(stack([6, 90, 40])), DDP(stack([6, 90, 40]))], []
    for early, model in enumerate(models):
        parameters = list(model.parameters())
        groups = [{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.003}]
        update = getattr(torch.optim, optimizer)(groups, lr=0.01, **arguments)
        if early:
            accelerate_ddp(model, options_of(values), optimizer=update)
        schedule = torch.optim.lr_scheduler.StepLR(update, 2, gamma=0.5)
        with model.join(enable=uneven):
            for step in range(4 + (dist.get_rank() if uneven else 0)):
                update.zero_grad()
                before = [parameter.detach().clone() for parameter in parameters]
                if not uneven:
                    with model.no_sync():
                        model(batch(100 + step, 6)).pow(2).sum().backward()
                loss = model(batch(step, 6)).pow(2).sum()
                with step_in_backward(model) if early else contextlib.nullcontext():
                    loss.backward()
                if early:
                    moved.append(
                        all(not torch.equal(a, b) for a, b in zip(before, parameters, strict=True))
                    )
                update.step()
                schedule.step()
                assert all(parameter.grad is not None for parameter in parameters)
    error = max(
        (a - b).abs().max().item()
        for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True)
    )
    accelerate_ddp(models[1], Comm())  # takes the optimizer back, too
    update.zero_grad()
    before = parameters[0].detach().clone()
    models[1](batch(0, 6)).pow(2).sum().backward()
    late = torch.equal(before, parameters[0])
    update.step()
    return {
        "error": error,
        "moved": all(moved),
        "late": late and not torch.equal(before, parameters[0]),
    }


def resumed(values: dict[str, Any]) -> list[bool]:
    """Return whether three more steps after a checkpoint are those that would have come without it.

    The first value is with what comm keeps, the second without.
    """
    same = []
    for keep in (True, False):
        widths = [64, 40, 30]
        model = accelerate_ddp(DDP(stack(widths)), options_of(values))

        def steps(model: nn.Module, numbers: range, width: int = widths[0]) -> None:
            for step in numbers:
                model.zero_grad()
                model(batch(step, width)).pow(2).mean().backward()
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter -= 0.1 * parameter.grad

        steps(model, range(4))
        weights, kept = (
            copy.deepcopy(model.module.state_dict()),
            copy.deepcopy(comm_state_dict(model)),
        )
        steps(model, range(4, 7))
        other = accelerate_ddp(DDP(stack(widths)), options_of(values))
        steps(other, range(1))  # DDP orders its buckets at the first step
        other.module.load_state_dict(weights)
        if keep:
            load_comm_state_dict(other, kept)
        steps(other, range(4, 7))
        same.append(
            all(
                torch.equal(a, b)
                for a, b in zip(model.parameters(), other.parameters(), strict=True)
            )
        )
    return same
