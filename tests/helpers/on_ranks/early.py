"""Optimizer-in-backward: where steps may be taken in the backward pass, and what is refused."""

from __future__ import annotations

import contextlib
import copy
import time
from typing import Any

import torch
from torch import nn

from gallery_lib.comm.accelerate_ddp import accelerate_ddp, step_in_backward
from gallery_lib.config import Comm
from on_ranks.models import DDP, batch, stack


def gan() -> bool:
    """Return whether both networks of a GAN get the weights that plain DDP gives.

    Each network takes its steps in its own backward pass.
    """
    torch.manual_seed(0)
    plain, weights = (nn.Linear(6, 5), nn.Linear(5, 1)), []
    for early in (False, True):
        G, D = (DDP(copy.deepcopy(each)) for each in plain)
        of_g, of_d = (
            torch.optim.SGD(each.parameters(), 0.1, momentum=0.9, foreach=False) for each in (G, D)
        )
        if early:
            accelerate_ddp(G, Comm(), optimizer=of_g)
            accelerate_ddp(D, Comm(), optimizer=of_d)

        def block(model: nn.Module, early: bool = early) -> Any:
            return step_in_backward(model) if early else contextlib.nullcontext()

        for step in range(4):
            of_d.zero_grad()
            loss = D(G(batch(step, 6)).detach()).mean() - D(batch(step, 5)).pow(2).mean()
            with block(D):
                loss.backward()
            of_d.step()
            of_g.zero_grad()
            loss = -D(G(batch(step, 6))).mean()
            with block(G):
                loss.backward()
            of_g.step()
        weights.append([p.detach().clone() for model in (G, D) for p in model.parameters()])
    for model in (G, D):
        accelerate_ddp(model, Comm())
    return all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def closure() -> bool:
    """Return whether `step(closure)` gives plain DDP's weights.

    The model could take steps in the backward pass.
    """
    weights = []
    for early in (False, True):
        model = DDP(stack([6, 9, 4]))
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
        weights.append([p.detach().clone() for p in model.parameters()])
    accelerate_ddp(model, Comm())
    return all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def refused(what: str) -> str:
    """Return the message where the step taken is not the one that `optimizer.step()` would take."""
    model = DDP(stack([6, 9, 4]))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    if what == "other optimizer":
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], 0.1)
    if what not in ("no optimizer", "other optimizer"):
        accelerate_ddp(model, Comm(), optimizer=optimizer)

    def loss(step: int = 0) -> Any:
        return model(batch(step, 6)).pow(2).sum()

    def early(step: int = 0, **options: Any) -> None:
        value = loss(step)
        with step_in_backward(model):
            value.backward(**options)

    def closure() -> Any:
        early()
        return loss()

    try:
        if what == "other optimizer":
            accelerate_ddp(model, Comm(), optimizer=optimizer)
        elif what in ("no step", "a forward pass", "accelerate_ddp again"):
            early()
            if what == "no step":
                model.eval()
                with step_in_backward(model):
                    pass
            loss() if what == "a forward pass" else accelerate_ddp(model, Comm())
        elif what == "two backward passes":
            first, second = loss(0), loss(1)
            with step_in_backward(model):
                first.backward()
                second.backward()  # of which plain DDP averages nothing
            optimizer.step()
        elif what == "no backward pass":
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
            if what == "another backward pass":
                value = nn.functional.linear(torch.ones(1, 6), model.module[0].weight).sum()
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
                    model.module[0].weight.clamp_(-1, 1)
            optimizer.step(closure) if what == "closure" else optimizer.step()
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
    else:
        message = "nothing was raised"
    if what not in (
        "two backward passes",
        "no step",
        "a forward pass",
        "accelerate_ddp again",
        "no optimizer",
        "other optimizer",
    ):
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
        try:
            with step_in_backward(model):
                value.backward()
        except ZeroDivisionError:
            pass
        try:
            optimizer.step()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def _fail(*_: Any) -> None:
    time.sleep(1)  # until the other layer's parameters have had their step
    raise ZeroDivisionError
