"""Faults that the battery has to find: each makes the product wrong in one way.

They act in the process that trains, on what the product returned. They do not touch the product's
sources, so they stay when the sources change.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn

from .loops import Run

FAULTS: dict[str, Callable[[Run], Any]] = {}


def fault(function: Callable[[Run], Any]) -> Callable[[Run], Any]:
    """Add a fault to the table: a function that acts now, or returns a context that does."""
    FAULTS[function.__name__] = function
    return function


class _Changed:
    """Loader whose passes go through `change(batches, number of the pass)`."""

    def __init__(self, loader: Any, change: Callable[[Iterator[Any], int], Iterator[Any]]) -> None:
        self.loader, self.change, self.passes = loader, change, 0

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        return self.change(iter(self.loader), self.passes)


def _loads(run: Run, change: Callable[[Iterator[Any], int], Iterator[Any]]) -> Any:
    return patch.object(run, "loader", _Changed(run.loader, change))


def _steps(
    run: Run, before: Callable[[], Any] = lambda: None, after: Callable[[], Any] = lambda: None
) -> Any:
    step = run.optimizer.step

    def stepped(*arguments: Any) -> Any:
        before()
        value = step(*arguments)
        after()
        return value

    return patch.object(run.optimizer, "step", stepped)


@fault
def lost_sample(run: Run) -> Any:
    """Drop the second batch of each pass."""
    return _loads(run, lambda batches, _: (one for n, one in enumerate(batches) if n != 1))


@fault
def doubled_step(run: Run) -> Any:
    """Take each step of the optimizer twice."""
    return _steps(run, before=run.optimizer.step)


@fault
def scaled_gradient(run: Run) -> None:
    """Make the gradient of the first trained parameter 1 % too large."""
    next(p for p in run.model.parameters() if p.requires_grad).register_hook(lambda g: g * 1.01)


@fault
def dropped_hook(run: Run) -> None:
    """Remove the forward hooks and forward pre-hooks of the model's own modules."""
    for module in run.model.modules():
        if not isinstance(module, nn.parallel.DistributedDataParallel):
            module._forward_hooks.clear()
            module._forward_pre_hooks.clear()


@fault
def key_with_prefix(run: Run) -> Any:
    """Begin the keys of a checkpoint with a wrapper's name."""
    plain = run.model.state_dict

    def prefixed(*arguments: Any, **more: Any) -> dict[str, Any]:
        return {f"module.{name}": value for name, value in plain(*arguments, **more).items()}

    return patch.object(run.model, "state_dict", prefixed)


@fault
def rounded_double(run: Run) -> Any:
    """Round weights in float64 to what float32 holds, after each step."""

    @torch.no_grad()
    def rounded() -> None:
        for p in run.model.parameters():
            if p.dtype is torch.float64:
                p.copy_(p.float())

    return _steps(run, after=rounded)


@fault
def gradient_not_averaged(run: Run) -> Any:
    """Let every rank go on with its own gradients."""
    forward = nn.parallel.DistributedDataParallel.forward

    def quiet(self: Any, *arguments: Any, **more: Any) -> Any:
        with self.no_sync():
            return forward(self, *arguments, **more)

    return patch.object(nn.parallel.DistributedDataParallel, "forward", quiet)


@fault
def stale_rate(run: Run) -> Any:
    """Take all steps with the learning rate of the beginning."""
    groups = run.optimizer.param_groups
    first = [group["lr"] for group in groups]
    now: list[Any] = []

    def old() -> None:
        now[:] = [group["lr"] for group in groups]
        for group, rate in zip(groups, first, strict=False):
            group["lr"] = rate

    def new() -> None:
        for group, rate in zip(groups, now, strict=True):
            group["lr"] = rate

    return _steps(run, before=old, after=new)


@fault
def batch_type_lost(run: Run) -> Any:
    """Turn batches of a class of their own into plain dicts and lists."""

    def plain(batch: Any) -> Any:
        if isinstance(batch, dict):
            return dict(batch)
        return list(batch) if isinstance(batch, (list, tuple)) else batch

    return _loads(run, lambda batches, _: map(plain, batches))


@fault
def buffer_not_updated(run: Run) -> Any:
    """Set buffers back to their first values after each step."""
    kept = [(b, b.clone()) for b in run.model.buffers()]
    return _steps(run, after=lambda: [b.copy_(old) for b, old in kept])


@fault
def same_permutation(run: Run) -> Any:
    """Give the later passes the order of the first."""
    first: list[Any] = []

    def change(batches: Iterator[Any], number: int) -> Iterator[Any]:
        if number == 1:
            first.extend(batches)
        return iter(first)

    return _loads(run, change)


@fault
def untied(run: Run) -> None:
    """Make parameters that two modules share into two, which differ after the first step."""
    seen: set[int] = set()
    for module in run.model.modules():
        for name, p in list(module._parameters.items()):
            if p is not None and id(p) in seen:
                module._parameters[name] = nn.Parameter(p.detach().clone())
            seen.add(id(p))


@fault
def evaluation_lost(run: Run) -> Any:
    """Make `eval()` do nothing, so that running averages move while a model is measured."""
    return patch.object(run.model, "eval", lambda: run.model)


@fault
def thawed(run: Run) -> None:
    """Train frozen parameters, too."""
    for p in run.model.parameters():
        p.requires_grad_(p.is_floating_point() or p.is_complex())


@fault
def random_state_moved(run: Run) -> None:
    """Draw one number more from the global generator."""
    torch.rand(())


@fault
def decay_lost(run: Run) -> None:
    """Leave weight decay out of steps."""
    for group in run.optimizer.param_groups:
        group["weight_decay"] = 0.0


@fault
def pass_waits(run: Run) -> Any:
    """Let the ranks wait for each other at the beginning of a pass."""

    def change(batches: Iterator[Any], _: int) -> Iterator[Any]:
        if run.world > 1:
            dist.barrier()
        yield from batches

    return _loads(run, change)


@fault
def never_ends(run: Run) -> Any:
    """Make a training hang: its first step waits for an hour."""
    return patch.object(run.optimizer, "step", lambda *_: time.sleep(3600))


@contextlib.contextmanager
def planted(name: str, run: Run) -> Iterator[None]:
    """Context: train with the fault `name`; '' plants none."""
    with (FAULTS[name](run) if name else None) or contextlib.nullcontext():
        yield
