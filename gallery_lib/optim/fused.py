"""Adam, AdamW, SGD and Adagrad that use torch's fused implementation in each step that allows it.

torch decides once, by `fused=True`, and then raises for sparse gradients and complex weights. Here
each parameter group is examined after the closure. The fused implementation takes the group, or
torch's own choice of the others does. Options, states and `state_dict()` are those of torch's
classes; the option `fused` keeps its value. A group in which `foreach`, `fused`, `capturable` or
`differentiable` was chosen is left to torch. `adoption.accelerate_optimizer` makes the objects.
"""

from __future__ import annotations

import dataclasses
import itertools
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


class Fused(torchs_step.PickledAsTorchs):
    """Base of the fused optimizers: decides for each group whether the fused step suits it."""

    _states: tuple[str, ...]
    _suited: dict[int, _Seen]  # by group, from its last step that could be fused
    _taken: _Seen  # while torch takes a fused step: the group's

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
                    self._suited[id(group)] = _seen(self.state, group)
                self._taken = self._suited[id(group)]
                try:
                    torchs_step.take(self, super().step, [{**group, "fused": True}])
                finally:
                    del self._taken
            else:
                self._suited.pop(id(group), None)
                torchs_step.take(self, super().step, [group])
        return loss

    def _init_group(self, group: dict[str, Any], *lists: list[Tensor]) -> Any:
        """Fill torch's empty lists: weights, gradients, states; those of the last step if kept."""
        seen: _Seen | None = vars(self).get("_taken")
        if seen is None:
            return super()._init_group(group, *lists)  # type: ignore[misc]
        if seen.outcome:
            for new, known in zip(lists, seen.lists, strict=True):
                new.extend(known)
            lists[1][:] = [p.grad for p in lists[0] if p.grad is not None]
            return seen.outcome[0]
        outcome = super()._init_group(group, *lists)  # type: ignore[misc]
        # States that torch has made just now were not there when the group was seen.
        if _same_objects(_values_of_states(self.state, group["params"]), seen.states):
            seen.lists.extend(map(tuple, lists))
            seen.outcome.append(outcome)
        return outcome

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
            # torch's other implementations decay a gradient that is its weight with it.
            and (tensor.data_ptr() != p.data_ptr() or not p.numel())
            for tensor in (p.grad, *there)
        )

    def _prepare(self, group: dict[str, Any]) -> None:
        """Move step counts to their weights in fp32, where the fused implementation counts."""
        for p in group["params"]:
            step = None if p.grad is None else (self.state.get(p) or {}).get("step")
            if step is not None and (step.device != p.device or step.dtype is not torch.float32):
                self.state[p]["step"] = step.to(p.device, torch.float32)


@dataclasses.dataclass(frozen=True)
class _Seen:
    """A group as it was when it was found to suit the fused step."""

    options: list[Any]
    weights: list[Tensor]
    places: frozenset[int]
    """Addresses of the weights; no gradient lies there."""
    memory: list[Any]
    """Where each weight lies, and how."""
    kinds: list[type]
    """Of the gradients: Tensor, or NoneType where there is none."""
    dtypes: list[torch.dtype]
    strides: list[Any]
    states: list[Any]
    lists: list[tuple[Tensor, ...]] = dataclasses.field(default_factory=list)
    """Weights, gradients and states as torch's step put them into lists."""
    outcome: list[Any] = dataclasses.field(default_factory=list)
    """What torch returned when it made the lists."""


def _seen(states: Any, group: dict[str, Any]) -> _Seen:
    """Return a group as it is now, for `_unchanged` to compare a later step with."""
    weights = list(group["params"])
    grads = [p.grad for p in weights]
    given = [grad for grad in grads if grad is not None]
    return _Seen(
        _values(group),
        weights,
        frozenset(map(Tensor.data_ptr, weights)),
        _memory(weights),
        list(map(type, grads)),
        list(map(_DTYPE, given)),
        list(map(Tensor.stride, given)),
        _values_of_states(states, weights),
    )


def _unchanged(before: _Seen, states: Any, group: dict[str, Any]) -> bool:
    """Return whether nothing has changed that decides whether the group can be fused.

    It runs in every step, for every weight: each line is one loop in C.
    """
    options, weights = _values(group), group["params"]
    if any(isinstance(value, Tensor) for value in options) or options != before.options:
        return False
    if not _same_objects(weights, before.weights) or _memory(weights) != before.memory:
        return False
    grads = [p.grad for p in weights]
    if list(map(type, grads)) != before.kinds:
        return False
    given = [grad for grad in grads if grad is not None]
    return (
        set(map(_LAYOUT, given)) <= {torch.strided}
        and list(map(_DTYPE, given)) == before.dtypes
        and list(map(Tensor.stride, given)) == before.strides
        and not any(map(Tensor.is_neg, given))
        and before.places.isdisjoint(map(Tensor.data_ptr, given))
        and _same_objects(_values_of_states(states, weights), before.states)
    )


_DTYPE = vars(torch._C.TensorBase)["dtype"].__get__
_LAYOUT = vars(torch._C.TensorBase)["layout"].__get__


def _memory(tensors: list[Tensor]) -> list[Any]:
    return [*map(Tensor.data_ptr, tensors), *map(Tensor.stride, tensors)]


def _values_of_states(states: Any, weights: list[Tensor]) -> list[Any]:
    there = filter(None, map(states.get, weights))
    return list(itertools.chain.from_iterable(map(dict.values, there)))


def _same_objects(now: list[Any], before: list[Any]) -> bool:
    return len(now) == len(before) and all(map(operator.is_, now, before))


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
