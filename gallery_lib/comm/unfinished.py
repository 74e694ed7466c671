"""Refuse optimizer steps on gradients whose averaging has not ended.

A bucket is averaged once all its parameters have a gradient. Where one gets none, torch says so at
the next forward pass. Until then the gradients of its bucket are each rank's own. A step in
between, the last of a training say, would use those gradients. So every optimizer is checked before
its step, and after it for optimizers that call a closure.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, Protocol

from torch import nn, optim
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gallery_lib.errors import InputError


class Averages(Protocol):
    """Owner of averaged gradients: `trained` are its parameters.

    `unused()` returns the error for those that got no gradient.
    """

    trained: list[nn.Parameter]

    def unused(self) -> InputError:
        """Return the error for parameters that got no gradient."""
        ...


_unfinished: weakref.WeakSet[Any] = weakref.WeakSet()


def note(averages: Averages, unfinished: bool) -> None:
    """Note whether the last backward pass left gradients that wait for others of their bucket."""
    if unfinished:
        _ask_before_steps()
        _unfinished.add(averages)
    else:
        _unfinished.discard(averages)


@functools.cache
def _ask_before_steps() -> None:
    """Register the check with every optimizer of this process, from its next step on."""
    register_optimizer_step_pre_hook(_refuse)
    register_optimizer_step_post_hook(_refuse)


def _refuse(optimizer: optim.Optimizer, *_: Any) -> None:
    """Raise InputError where the optimizer has a parameter whose gradient may not be averaged."""
    for averages in list(_unfinished):
        trained = set(map(id, averages.trained))
        if any(
            id(parameter) in trained
            for group in optimizer.param_groups
            for parameter in group["params"]
        ):
            raise averages.unused()
