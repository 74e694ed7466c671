"""Have torch's own class take a step of an optimizer that is derived from it, for some of its groups.

Optimizers of ours take what they are written for; the rest is torch's work. By then the closure was
called, and the hooks are around our step, so that neither may run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def take(optimizer: torch.optim.Optimizer, step: Any, groups: Sequence[dict[str, Any]]) -> None:
    """Run torch's `step`, a bound method, without hooks and without a closure, on `groups`."""
    function = step.__func__
    while getattr(function, "hooked", False):  # torch puts its hooks around a class's step
        function = function.__wrapped__
    whole = optimizer.param_groups
    optimizer.param_groups = list(groups)
    try:
        function(optimizer)
    finally:
        optimizer.param_groups = whole
