"""Optimizer over some of another optimizer's parameters, with its state and options.

On the CPU it uses torch's fused implementation where there is one, unless the user has set
`foreach` or `fused`. The other implementation is a loop over parameters in Python. It holds the GIL
against the backward pass beside it, and goes over memory several times. State and checkpoints are
the same; values differ in rounding.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gallery_lib.errors import InputError

_COUPLED = (torch.optim.LBFGS,)
"""Optimizers whose step needs all gradients at once."""
_BY_PARAMETER = ("torch.optim", "gallery_lib.optim.fused_cpu", "gallery_lib.optim.fused")
"""Modules whose optimizers treat each parameter by itself.

Those of this package are what accelerate() makes of torch's.
"""
_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)
"""Optimizers for which torch has a fused implementation on the CPU."""
_CHOICES = ("foreach", "fused")
"""Options that select an implementation, True or False."""
_OTHER_FORMS = ("capturable", "differentiable")
"""Options that exclude torch's fused implementation, or mean something else with it."""


def check_divisible(optimizer: torch.optim.Optimizer) -> None:
    """Raise InputError for an optimizer not known to treat each parameter by itself."""
    kind = type(optimizer)
    if not kind.__module__.startswith(_BY_PARAMETER) or isinstance(optimizer, _COUPLED):
        raise InputError(
            f"a step of {kind.__qualname__} cannot be divided: it is not known to treat each "
            "parameter by itself, as torch.optim's do (but for LBFGS). Leave `optimizer` out, "
            "and its step comes after the backward pass.",
            parameter="optimizer",
        )


def partial_optimizer(
    optimizer: torch.optim.Optimizer, gradients: Mapping[int, Tensor]
) -> torch.optim.Optimizer:
    """Return an optimizer over the parameters whose ids `gradients` has.

    It shares the state of `optimizer`, and has the options of the moment, for instance a changed
    learning rate.
    """
    part = object.__new__(type(optimizer))
    part.__dict__.update(optimizer.__dict__)
    part._optimizer_step_pre_hooks, part._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
    groups = [
        {**group, "params": [p for p in group["params"] if id(p) in gradients]}
        for group in optimizer.param_groups
    ]
    part.param_groups = [
        {**group, "fused": True} if _may_be_fused(optimizer, group, gradients) else group
        for group in groups
        if group["params"]
    ]
    return part


def _may_be_fused(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], gradients: Mapping[int, Tensor]
) -> bool:
    is_set = any(group.get(name) is not None for name in _CHOICES) or any(
        group.get(name) for name in _OTHER_FORMS
    )
    if type(optimizer) not in _FUSED or is_set or isinstance(group["lr"], Tensor):
        return False
    weights: list[Tensor] = group["params"]
    have_momentum = {
        optimizer.state.get(weight, {}).get("momentum_buffer") is not None for weight in weights
    }
    # SGD's fused implementation takes all momentum buffers as new, or none.
    return len(have_momentum) == 1 and all(
        weight.device.type == "cpu"
        and weight.dtype in (torch.float32, torch.float64)
        and gradients[id(weight)].dtype == weight.dtype
        and not gradients[id(weight)].is_sparse
        for weight in weights
    )
