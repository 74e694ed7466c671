"""Have torch's own class take the step of an optimizer derived from it, for some of its groups.

This package's optimizers take the groups they are written for; the rest is torch's work. By then
the closure was called, and the hooks are around this package's step. So neither may run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


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
