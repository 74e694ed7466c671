"""Adam, AdamW, SGD and Adagrad that use torch's fused implementation in each step that allows it.

torch decides once, by `fused=True`, and then raises for sparse gradients and complex weights. Here
each parameter group is examined after the closure. The fused implementation takes the group, or
torch's own choice of the others does. Options, states and `state_dict()` are those of torch's
classes; the option `fused` keeps its value. A group in which `foreach`, `fused`, `capturable` or
`differentiable` was chosen is left to torch. `adoption.accelerate_optimizer` makes the objects.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gallery_lib.kernels.runtime.tensor_lists import is_dense, same_layout
from gallery_lib.optim import torchs_step

CHOICES = ("foreach", "fused")
"""Options that select one of torch's implementations, with True or False."""
OTHER_FORMS = ("capturable", "differentiable")
"""Options that ask for an implementation of their own, with True."""


def choice(group: dict[str, Any]) -> str | None:
    """Return which of torch's implementations a group asks for, as `option=value`, or None."""
    for name in CHOICES:
        if group.get(name) is not None:
            return f"{name}={group[name]}"
    return next((f"{name}=True" for name in OTHER_FORMS if group.get(name)), None)


class Fused(torch.optim.Optimizer):
    """Base of the fused optimizers: decides for each group whether the fused step suits it."""

    _states: tuple[str, ...]
    _suited: dict[int, Any]  # by group: what the last step that could be fused was like

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Return whether a GradScaler may leave scale and overflow flag to the step.

        It does so with torch's fused implementations.
        """
        return all(map(self._may_be_fused, self.param_groups))

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, value: bool) -> None:
        """Ignore what torch's constructor sets: the answer follows the gradients."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; return the closure's loss, or None without a closure."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            unchanged = self._unchanged(group)
            if unchanged or self._may_be_fused(group):
                if not unchanged:
                    self._prepare(group)
                    self._suited[id(group)] = _remembered(self.state, group)
                torchs_step.take(self, super().step, [{**group, "fused": True}])
            else:
                self._suited.pop(id(group), None)
                torchs_step.take(self, super().step, [group])
        return loss

    def _may_be_fused(self, group: dict[str, Any]) -> bool:
        return not torch.compiler.is_compiling() and self._can_be_fused(group)

    def _unchanged(self, group: dict[str, Any]) -> bool:
        """Return whether the group's last step was fused, and nothing has changed since."""
        # Classes are changed in place, so there is no constructor to make this.
        before = vars(self).setdefault("_suited", {}).get(id(group))
        return (
            before is not None
            and not torch.compiler.is_compiling()
            and _unchanged(before, self.state, group)
        )

    def _can_be_fused(self, group: dict[str, Any]) -> bool:
        if choice(group) is not None or self.defaults.get("differentiable"):
            return False
        if any(isinstance(v, Tensor) for v in _values(group)):
            return False
        weights = [p for p in group["params"] if p.grad is not None]
        steps = [self.state[p].get("step") for p in weights if p in self.state]
        counts = [step for step in steps if step is not None]
        return (
            len({(p.device.type, p.dtype) for p in weights}) <= 1
            and len(set(map(id, weights))) == len(weights)
            and len(set(map(id, counts))) == len(counts)
            and all(isinstance(count, Tensor) for count in counts)
            and all(map(self._suits, weights))
        )

    def _suits(self, p: Tensor) -> bool:
        """Return whether weight, gradient and states have the same memory layout."""
        if type(p) not in (Tensor, nn.Parameter) or type(p.grad) is not Tensor:
            return False
        if p.dtype not in (torch.float32, torch.float64) or p.device.type not in ("cpu", "cuda"):
            return False
        state = self.state.get(p) or {}
        there = [state[name] for name in self._states if state.get(name) is not None]
        return is_dense(p) and all(
            tensor.layout is torch.strided
            and tensor.dtype is p.dtype
            and tensor.device == p.device
            and same_layout(p, tensor)
            and not tensor.is_neg()
            for tensor in (p.grad, *there)
        )

    def _prepare(self, group: dict[str, Any]) -> None:
        """Move step counts to their weights in fp32, where the fused implementation counts."""
        for p in group["params"]:
            step = None if p.grad is None else (self.state.get(p) or {}).get("step")
            if step is not None and (step.device != p.device or step.dtype is not torch.float32):
                self.state[p]["step"] = step.to(p.device, torch.float32)


def _form(tensor: Tensor) -> Any:
    """Return what decides whether a tensor fits into a fused step, beside its device."""
    if tensor.layout is not torch.strided:
        return None
    return type(tensor), tensor.dtype, tensor.stride(), tensor.is_neg()


def _remembered(states: Any, group: dict[str, Any]) -> Any:
    """Return what `_unchanged` compares a later step with."""
    weights = [
        None
        if p.grad is None
        else (p, (p.data_ptr(), p.stride()), _form(p.grad), list((states.get(p) or {}).values()))
        for p in group["params"]
    ]
    return _values(group), weights


def _unchanged(before: Any, states: Any, group: dict[str, Any]) -> bool:
    """Return whether nothing has changed that decides whether the group can be fused."""
    options, weights = before
    now = _values(group)
    if any(isinstance(value, Tensor) for value in now) or now != options:
        return False
    if len(weights) != len(group["params"]):
        return False
    for p, entry in zip(group["params"], weights, strict=True):
        grad = p.grad
        if grad is None or entry is None:
            if (grad is None) != (entry is None):
                return False
            continue
        weight, memory, form, values = entry
        if p is not weight or (p.data_ptr(), p.stride()) != memory or _form(grad) != form:
            return False
        state = list((states.get(p) or {}).values())
        if len(state) != len(values) or not all(map(operator.is_, state, values)):
            return False
    return True


def _values(group: dict[str, Any]) -> list[Any]:
    """Return the options of a group as a flat list, pairs taken apart."""
    values = [value for name, value in group.items() if name != "params"]
    return [part for v in values for part in (v if isinstance(v, list | tuple) else (v,))]


class Adam(Fused, torch.optim.Adam):
    """Adam (Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2014)."""

    _states = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")


class AdamW(Fused, torch.optim.AdamW):
    """AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2017)."""

    _states = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")


class SGD(Fused, torch.optim.SGD):
    """Stochastic gradient descent, with momentum (Sutskever et al., 2013) or without.

    The momentum is torch's variant.
    """

    _states = ("momentum_buffer",)

    def _may_be_fused(self, group: dict[str, Any]) -> bool:
        return not (group["momentum"] and group["dampening"]) and super()._may_be_fused(group)

    def _prepare(self, group: dict[str, Any]) -> None:
        """Create missing momentum buffers as zeros.

        torch's fused implementation leaves momentum undefined if its first step is skipped.
        """
        if group["momentum"]:
            for p in group["params"]:
                if p.grad is not None and self.state[p].get("momentum_buffer") is None:
                    self.state[p]["momentum_buffer"] = torch.zeros_like(p)


class Adagrad(Fused, torch.optim.Adagrad):
    """Adagrad, adaptive subgradient method.

    Duchi et al., "Adaptive Subgradient Methods for Online Learning and Stochastic Optimization",
    2011.
    """

    _states = ("sum",)
