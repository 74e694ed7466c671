"""Optimizers derived from torch's own classes: what they leave to these classes, and pickles.

This package's optimizers take the groups they are written for; the rest is torch's work. By then
the closure was called, and the hooks are around this package's step. So neither may run again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch


class PickledAsTorchs(torch.optim.Optimizer):
    """Base of optimizers that are pickled as torch's class, so nobody needs this package to read.

    A deep copy is of the same class.
    """

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Protocol 2 and above insist on the object's own class.
        reduced: Any = super().__reduce_ex__(1)
        function, (kind, *arguments), *state = reduced
        torchs = next(base for base in kind.__mro__ if base.__module__.startswith("torch.optim."))
        kind = kind if torchs is torch.optim.Optimizer else torchs  # LAMB is this package's alone
        return function, (kind, *arguments), *state

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        memo[id(self)] = result = type(self).__new__(type(self))
        result.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return result


def loss_of(closure: Callable[[], Any] | None) -> Any:
    """Return the loss of a step's closure, which needs gradients; None without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def take(optimizer: torch.optim.Optimizer, step: Any, groups: Sequence[dict[str, Any]]) -> None:
    """Run torch's `step`, a bound method, on `groups`, without hooks and without a closure."""
    function = step.__func__
    while getattr(function, "hooked", False):  # torch puts its hooks around a class's step
        function = function.__wrapped__
    whole = optimizer.param_groups
    if groups is whole:  # torch 2.11 cannot compile the assignment below
        function(optimizer)
        return
    optimizer.param_groups = list(groups)
    try:
        function(optimizer)
    finally:
        optimizer.param_groups = whole
