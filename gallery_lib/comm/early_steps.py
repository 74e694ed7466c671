"""Optimizer steps in the backward pass: a bucket's parameters are updated as soon as its gradients are averaged.

What remains at `optimizer.step()` are parameters that no bucket has brought. The values are those of a step at the end, for
optimizers that treat each parameter by itself, as torch's own do but for L-BFGS.

On the CPU these steps take torch's fused form where it has one, unless `foreach` or `fused` was chosen: the other one is a loop over
parameters in Python, which holds the interpreter's lock against the backward pass beside it, and goes over memory several times.
State and checkpoints are the same; values differ in rounding.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gallery_lib.errors import InputError

_COUPLED = (torch.optim.LBFGS,)
"""Whose step needs all gradients at once."""
_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)
"""Of which torch has a fused form on the CPU."""
_CHOICES = ("foreach", "fused")
"""Options with which a form is chosen, True or False."""
_OTHER_FORMS = ("capturable", "differentiable")
"""Options with which torch's fused form does not go together, or that mean something else with it."""


class EarlySteps:
    """Takes the steps of `optimizer` in parts. Raises InputError for an optimizer of which it is not known that it may be so divided."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        kind = type(optimizer)
        if not kind.__module__.startswith("torch.optim") or isinstance(optimizer, _COUPLED):
            raise InputError(
                f"a step of {kind.__qualname__} cannot be divided: it is not known to treat each parameter by itself, "
                "as torch.optim's do (but for LBFGS). Leave `optimizer` out, and its step comes after the backward pass."
            )
        self._optimizer = optimizer
        self._lock = threading.Lock()
        self._taken: list[Tensor] = []
        self._set_aside: list[tuple[Tensor, Tensor | None]] = []
        self._hooks = [optimizer.register_step_pre_hook(self._before_step), optimizer.register_step_post_hook(self._after_step)]

    def take(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """The step of these parameters, with these gradients. Parameters that are not the optimizer's are left alone."""
        own = {id(parameter): gradient for parameter, gradient in zip(parameters, gradients, strict=True)}
        with self._lock, torch.no_grad():
            part = self._part(own)
            of_part = [parameter for group in part.param_groups for parameter in group["params"]]
            before = [parameter.grad for parameter in of_part]
            try:
                for parameter in of_part:
                    parameter.grad = own[id(parameter)]
                type(part).step(part)
            finally:  # DistributedDataParallel is not done with the parameters' own gradients
                for parameter, gradient in zip(of_part, before, strict=True):
                    parameter.grad = gradient
            self._taken += of_part

    def _part(self, own: dict[int, Tensor]) -> torch.optim.Optimizer:
        """An optimizer over some parameters, with the state and the present options of the whole one."""
        part = object.__new__(type(self._optimizer))
        part.__dict__.update(self._optimizer.__dict__)
        part._optimizer_step_pre_hooks, part._optimizer_step_post_hooks = OrderedDict(), OrderedDict()
        groups = [{**group, "params": [p for p in group["params"] if id(p) in own]} for group in self._optimizer.param_groups]
        part.param_groups = [{**group, "fused": True} if self._may_be_fused(group, own) else group for group in groups if group["params"]]
        return part

    def _may_be_fused(self, group: dict[str, Any], own: dict[int, Tensor]) -> bool:
        chosen = any(group.get(name) is not None for name in _CHOICES) or any(group.get(name) for name in _OTHER_FORMS)
        if type(self._optimizer) not in _FUSED or chosen or isinstance(group["lr"], Tensor):
            return False
        weights: list[Tensor] = group["params"]
        have_momentum = {self._optimizer.state.get(weight, {}).get("momentum_buffer") is not None for weight in weights}
        return len(have_momentum) == 1 and all(  # SGD's fused form takes all for new, or none
            weight.device.type == "cpu"
            and weight.dtype in (torch.float32, torch.float64)
            and own[id(weight)].dtype == weight.dtype
            and not own[id(weight)].is_sparse
            for weight in weights
        )

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Parameters that have had their step have no gradient in it, which optimizers take as: leave it as it is."""
        self._set_aside = [(parameter, parameter.grad) for parameter in self._taken]
        for parameter in self._taken:
            parameter.grad = None
        self._taken = []

    def _after_step(self, *_: Any) -> None:
        for parameter, gradient in self._set_aside:
            parameter.grad = gradient
        self._set_aside = []

    def close(self) -> None:
        """The optimizer's next step is all its own again."""
        for hook in self._hooks:
            hook.remove()
