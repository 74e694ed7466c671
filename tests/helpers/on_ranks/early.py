"""Optimizer-in-backward: where steps may be taken in the backward pass, and what is refused."""

from __future__ import annotations

import contextlib
import copy
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gallery_lib.comm.accelerate_ddp import accelerate_ddp, step_in_backward
from gallery_lib.config import Comm
from on_ranks.models import DDP, apart, batch, equal, message_of, options_of, stack


def block(model: nn.Module, early: bool) -> Any:
    return step_in_backward(model) if early else contextlib.nullcontext()


def steps(
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
                with block(model, bool(early)):
                    loss.backward()
                if early:
                    moved += [
                        not torch.equal(a, b) for a, b in zip(before, parameters, strict=True)
                    ]
                update.step()
                schedule.step()
                assert all(parameter.grad is not None for parameter in parameters)
    error = apart(*models)
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


def strided() -> float:
    """Return the largest difference from plain DDP's weights, of channels_last and complex ones."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.convolution = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
            self.turned = nn.Parameter(torch.randn(4, 3, dtype=torch.complex64).t())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.convolution(x).pow(2).mean((2, 3)).to(torch.complex64)
            return (hidden @ self.turned.t()).abs().pow(2).sum()

    models = [DDP(Net()), DDP(Net())]
    for early, model in enumerate(models):
        optimizer = torch.optim.SGD(model.parameters(), 0.001)
        if early:
            accelerate_ddp(model, Comm(), optimizer=optimizer)
        for step in range(3):
            optimizer.zero_grad()
            loss = model(batch(step, 3 * 25).view(3, 3, 5, 5))
            with block(model, bool(early)):
                loss.backward()
            optimizer.step()
    return apart(*models)


def gan() -> bool:
    """Return whether both networks of a GAN get the weights that plain DDP gives.

    Each network takes its steps in its own backward pass.
    """
    torch.manual_seed(0)
    plain, trained = (nn.Linear(6, 5), nn.Linear(5, 1)), []
    for early in (False, True):
        G, D = (DDP(copy.deepcopy(each)) for each in plain)
        of_g, of_d = (
            torch.optim.SGD(each.parameters(), 0.1, momentum=0.9, foreach=False) for each in (G, D)
        )
        if early:
            accelerate_ddp(G, Comm(), optimizer=of_g)
            accelerate_ddp(D, Comm(), optimizer=of_d)
        for step in range(4):
            of_d.zero_grad()
            loss = D(G(batch(step, 6)).detach()).mean() - D(batch(step, 5)).pow(2).mean()
            with block(D, early):
                loss.backward()
            of_d.step()
            of_g.zero_grad()
            loss = -D(G(batch(step, 6))).mean()
            with block(G, early):
                loss.backward()
            of_g.step()
        trained.append(nn.ModuleList([G, D]))
    return equal(*trained)


def closure() -> bool:
    """Return whether `step(closure)` gives plain DDP's weights.

    The model could take steps in the backward pass.
    """
    models = [DDP(stack([6, 9, 4])), DDP(stack([6, 9, 4]))]
    for early, model in enumerate(models):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        if early:
            accelerate_ddp(model, Comm(), optimizer=optimizer)
        for step in range(3):

            def again(
                step: int = step, model: nn.Module = model, optimizer: Any = optimizer
            ) -> Any:
                optimizer.zero_grad()
                loss = model(batch(step, 6)).pow(2).sum()
                loss.backward()
                return loss

            optimizer.step(again)
    return equal(*models)


def refused(what: str) -> str:
    """Return the message where the step taken is not the one that `optimizer.step()` would take."""
    model = DDP(stack([6, 9, 4]))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    if what == "other optimizer":
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], 0.1)
    elif what != "no optimizer":
        accelerate_ddp(model, Comm(), optimizer=optimizer)

    def loss(step: int = 0) -> Any:
        return model(batch(step, 6)).pow(2).sum()

    def early() -> None:
        value = loss()
        with step_in_backward(model):
            value.backward()

    def closure() -> Any:
        early()
        return loss()

    def misuse() -> None:
        weight = model.module[0].weight
        if what == "other optimizer":
            accelerate_ddp(model, Comm(), optimizer=optimizer)
        elif what == "no step":
            early()
            with step_in_backward(model):
                pass
        elif what == "a forward pass":
            early()
            loss()
        elif what == "accelerate_ddp again":
            early()
            accelerate_ddp(model, Comm())
        elif what == "two backward passes":
            first, second = loss(0), loss(1)
            with step_in_backward(model):
                first.backward()
                second.backward()  # of which plain DDP averages nothing
            optimizer.step()
        elif what in ("no backward pass", "no optimizer"):
            with step_in_backward(model):
                pass
        elif what == "no_sync":
            with model.no_sync():
                value = loss()
            with step_in_backward(model):
                value.backward()
        elif what == "nested":
            with step_in_backward(model), step_in_backward(model):
                pass
        elif what == "within a closure":
            optimizer.step(closure)
        else:
            value = nn.functional.linear(torch.ones(1, 6), weight).sum()
            early()
            if what == "another backward pass":
                value.backward()
            elif what == "clipping":
                nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            elif what == "learning rate":
                optimizer.param_groups[0]["lr"] = 0.2
            elif what == "zero_grad":
                optimizer.zero_grad()
            elif what == "weights":
                with torch.no_grad():
                    weight.clamp_(-1, 1)
            optimizer.step(closure) if what == "closure" else optimizer.step()

    message = message_of(misuse)
    if what in ("no backward pass", "no_sync", "nested", "within a closure", "clipping"):
        # the training can go on without
        accelerate_ddp(model, Comm())
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    return message


def fails_halfway() -> str:
    """Return the message of the next step after an error in the backward pass.

    Some parameters had had their step by then.
    """
    model = DDP(stack([6, 90, 40]))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    accelerate_ddp(model, Comm(bucket_mb=0.001), optimizer=optimizer)
    for step in range(2):
        optimizer.zero_grad()
        if step == 1:
            model.module[1].register_full_backward_hook(_fail)
        value = model(batch(step, 6)).sum()
        with contextlib.suppress(ZeroDivisionError), step_in_backward(model):
            value.backward()
        if (message := message_of(optimizer.step)) != "nothing was raised":
            return message
    return "nothing was raised"


def _fail(*_: Any) -> None:
    time.sleep(1)  # until the other layer's parameters have had their step
    raise ZeroDivisionError
