"""Optimizer-in-backward: where steps may be taken in the backward pass, and what is refused."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch
from torch import nn

from gallery_lib.comm.accelerate_ddp import accelerate_ddp, step_in_backward
from gallery_lib.config import Comm
from on_ranks.models import DDP, loss, message_of, small, stack


def _in_buckets() -> tuple[DDP, torch.optim.Optimizer]:
    model = DDP(stack([6, 90, 40]))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    accelerate_ddp(model, Comm(bucket_mb=0.001), optimizer=optimizer)
    return model, optimizer


def moved() -> list[bool]:
    """Return whether weights moved: in the block, in the step after it, and with other options."""
    model, optimizer = _in_buckets()
    found = []
    for early in (True, False):
        optimizer.zero_grad()
        value = loss(model, 0)
        for change in (value.backward, optimizer.step):
            before = [parameter.detach().clone() for parameter in model.parameters()]
            with step_in_backward(model) if early and not found else contextlib.nullcontext():
                change()
            pairs = list(zip(before, model.parameters(), strict=True))
            found.append(not any(torch.equal(*pair) for pair in pairs))
        accelerate_ddp(model, Comm())  # takes the optimizer back, too
    return found


def refused(what: str) -> str:
    """Return the message where a block takes no step, or one that is not the optimizer's."""
    if what == "fails halfway":
        return _fails_halfway()
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def misuse() -> None:
        if what == "other optimizer":
            other = torch.optim.SGD([nn.Parameter(torch.ones(2))], 0.1)
            accelerate_ddp(model, Comm(), optimizer=other)
        if what != "no optimizer":
            accelerate_ddp(model, Comm(), optimizer=optimizer)
        with model.no_sync() if what == "no_sync" else contextlib.nullcontext():
            value = loss(model, 0)
        with step_in_backward(model):
            if what in ("clipping", "no_sync", "two backward passes"):
                value.backward()
            if what == "two backward passes":
                loss(model, 1).backward()
            if what == "nested":
                with step_in_backward(model):
                    pass
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()

    message = message_of(misuse)
    accelerate_ddp(model, Comm())  # the training can go on without
    optimizer.zero_grad()
    loss(model, 0).backward()
    optimizer.step()
    return message


def _fails_halfway() -> str:
    """Return the message of an error in the backward pass, when some parameters had their step."""
    model, _ = _in_buckets()

    def step(number: int) -> None:
        value = loss(model, number)
        with step_in_backward(model):
            value.backward()

    step(0)  # after which DDP orders its buckets
    model.module[1].register_full_backward_hook(_fail)
    return message_of(lambda: step(1))


def _fail(*_: Any) -> None:
    time.sleep(1)  # until the other layer's parameters have had their step
    raise ZeroDivisionError
