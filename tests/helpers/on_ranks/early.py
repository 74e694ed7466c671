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
    """Return whether weights moved: in the block, in the step after it, and with other options."""
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
        accelerate_ddp(model, Comm())  # takes the optimizer back, too
    return found


def refused(what: str) -> str:
    """Return the message where a block takes no step, or one that is not the optimizer's."""
    model = DDP(stack([6, 9, 4]))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    if what == "other optimizer":
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], 0.1)
    elif what != "no optimizer":
        accelerate_ddp(model, Comm(), optimizer=optimizer)

    def misuse() -> None:
        if what == "other optimizer":
            accelerate_ddp(model, Comm(), optimizer=optimizer)
        elif what == "nested":
            with step_in_backward(model), step_in_backward(model):
                pass
        elif what == "clipping":
            with step_in_backward(model):
                model(batch(0, 6)).pow(2).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            optimizer.step()
        elif what == "no_sync":
            with model.no_sync():
                loss = model(batch(0, 6)).pow(2).sum()
            with step_in_backward(model):
                loss.backward()
        elif what == "two backward passes":
            with step_in_backward(model):
                for step in range(2):
                    model(batch(step, 6)).pow(2).sum().backward()
        else:
            with step_in_backward(model):
                pass

    message = message_of(misuse)
    accelerate_ddp(model, Comm())  # the training can go on without
    optimizer.zero_grad()
    model(batch(0, 6)).pow(2).sum().backward()
    optimizer.step()
    return message


def fails_halfway() -> str:
    """Return the message of an error in the backward pass, when some parameters had their step."""
    model = DDP(stack([6, 90, 40]))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    accelerate_ddp(model, Comm(bucket_mb=0.001), optimizer=optimizer)

    def step(number: int) -> None:
        value = model(batch(number, 6)).sum()
        with step_in_backward(model):
            value.backward()

    step(0)  # after which DDP orders its buckets
    model.module[1].register_full_backward_hook(_fail)
    return message_of(lambda: step(1))


def _fail(*_: Any) -> None:
    time.sleep(1)  # until the other layer's parameters have had their step
    raise ZeroDivisionError
