"""Optimizer-in-backward: where steps may be taken in the backward pass, and what is refused."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch
from torch import nn

from gallery_lib.comm.accelerate_ddp import accelerate_ddp, step_in_backward
from gallery_lib.config import Comm
from on_ranks.models import DDP, batch, message_of, stack


def moved() -> list[bool]:
    """Return whether weights moved in the block, in the step after it, and with other options."""
    model = DDP(stack([6, 90, 40]))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    accelerate_ddp(model, Comm(bucket_mb=0.001), optimizer=optimizer)
    found = []
    for early in (True, False):
        optimizer.zero_grad()
        loss = model(batch(0, 6)).pow(2).sum()
        for change in (loss.backward, optimizer.step):
            before = [parameter.detach().clone() for parameter in model.parameters()]
            with step_in_backward(model) if early and not found else contextlib.nullcontext():
                change()
            pairs = list(zip(before, model.parameters(), strict=True))
            found.append(not any(torch.equal(*pair) for pair in pairs))
            assert all(parameter.grad is not None for parameter in model.parameters())
        accelerate_ddp(model, Comm())  # takes the optimizer back, too
    return found


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

    def misuse() -> None:
        weight = model.module[0].weight
        if what == "other optimizer":
            accelerate_ddp(model, Comm(), optimizer=optimizer)
        elif what == "no step":
            early()
            with step_in_backward(model):
                pass
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
        elif what == "closure":
            optimizer.step(loss)
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
            optimizer.step()

    message = message_of(misuse)
    if what in ("no backward pass", "no_sync", "nested", "closure", "clipping"):
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
