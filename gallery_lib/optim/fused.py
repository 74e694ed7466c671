"""Adam, AdamW, SGD and Adagrad that use torch's fused implementation in each step that allows it.

torch decides once, by `fused=True`, and then raises for sparse gradients and complex weights. Here
each parameter group is examined after the closure. The fused implementation takes the group, or
torch's own choice of the others does. Options, states and `state_dict()` are those of torch's
classes; the option `fused` keeps its value. A group in which `foreach`, `fused`, `capturable` or
`differentiable` was chosen is left to torch. `adoption.accelerate_optimizer` makes the objects.
"""

from __future__ import annotations

import dataclasses
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from gallery_lib.kernels.runtime.tensor_lists import is_dense, same_layout
from gallery_lib.optim import torchs_step


def choice(group: dict[str, Any]) -> str | None:
    """Return which of torch's implementations a group asks for, as `option=value`, or None."""
    for name in ("foreach", "fused"):
        if group.get(name) is not None:
            return f"{name}={group[name]}"
    forms = ("capturable", "differentiable")
    return next((f"{name}=True" for name in forms if group.get(name)), None)


@dataclasses.dataclass
class _CachedGroup:
    """A group whose last step was fused, and the lists of tensors that torch made for it."""

    signature: list[Any]
    kept: list[Any]  # weights and states, so that no other object gets the identity of one
    lists: list[tuple[Tensor, ...]] = dataclasses.field(default_factory=list)
    outcome: list[Any] = dataclasses.field(default_factory=list)


class Fused(torchs_step.ByGroup):
    """Base of the fused optimizers: decides for each group whether the fused step suits it.

    A group that is as it was in its last step is neither examined nor gathered into lists again.
    """

    _states: tuple[str, ...]
    _current_group: _CachedGroup | None = None  # while torch takes a fused step: the group's

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Return whether a GradScaler may leave scale and overflow flag to the step.

        It does so with torch's fused implementations.
        """
        return all(map(self._may_be_fused, self.param_groups))

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, value: bool) -> None:
        """Ignore what torch's constructor sets: the answer follows the gradients."""

    def _take_group(self, group: dict[str, Any], step: Any) -> bool:
        # Classes are changed in place, so there is no constructor to make this.
        suited: dict[int, _CachedGroup] = vars(self).setdefault("_suited", {})
        entry = suited.pop(id(group), None)
        if entry is None or not entry.signature or entry.signature != _signature(self.state, group):
            if not self._may_be_fused(group):
                return False
            self._prepare(group)
            kept = [*group["params"], *_values_of_states(self.state, group["params"])]
            entry = _CachedGroup(_signature(self.state, group), kept)
        self._current_group = entry
        try:
            torchs_step.take(self, step, [{**group, "fused": True}])
        finally:
            del self._current_group
        suited[id(group)] = entry
        return True

    def _init_group(self, group: dict[str, Any], *lists: list[Tensor]) -> Any:
        """Fill torch's empty lists: weights, gradients, states; those of the last step if kept."""
        entry = self._current_group
        if entry is not None and entry.outcome:
            for new, known in zip(lists, entry.lists, strict=True):
                new.extend(known)
            lists[1][:] = [p.grad for p in lists[0] if p.grad is not None]
            return entry.outcome[0]
        outcome = super()._init_group(group, *lists)  # type: ignore[misc]
        # States that torch has made just now were not there when the entry was made.
        states = list(map(id, _values_of_states(self.state, group["params"])))
        if entry is not None and entry.signature and entry.signature[-1] == states:
            entry.lists.extend(map(tuple, lists))
            entry.outcome.append(outcome)
        return outcome

    def _may_be_fused(self, group: dict[str, Any]) -> bool:
        if torch.compiler.is_compiling() or self.defaults.get("differentiable"):
            return False
        if choice(group) is not None or any(isinstance(v, Tensor) for v in _values(group)):
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


_PLAIN = {Tensor, nn.Parameter}
_DTYPE = vars(torch._C.TensorBase)["dtype"].__get__
_LAYOUT = vars(torch._C.TensorBase)["layout"].__get__


def _signature(states: Any, group: dict[str, Any]) -> list[Any]:
    """Return all that decides whether a group can be fused; nothing where it cannot be.

    It runs in every step, for every weight: each line is one loop in C.
    """
    options, weights = _values(group), group["params"]
    grads = [p.grad for p in weights]
    given = [grad for grad in grads if grad is not None]
    if (
        torch.compiler.is_compiling()
        or any(isinstance(value, Tensor) for value in options)
        or not set(map(type, weights)) <= _PLAIN
        or not set(map(type, given)) <= _PLAIN
        or not set(map(_LAYOUT, [*weights, *given])) <= {torch.strided}
        or any(map(Tensor.is_neg, given))
    ):
        return []
    places = list(map(Tensor.data_ptr, weights))
    if not frozenset(places).isdisjoint(map(Tensor.data_ptr, given)):
        return []
    return [
        options,
        list(map(id, weights)),
        places,
        list(map(Tensor.stride, weights)),
        list(map(type, grads)),
        list(map(_DTYPE, given)),
        list(map(Tensor.stride, given)),
        list(map(id, _values_of_states(states, weights))),
    ]


def _values_of_states(states: Any, weights: list[Tensor]) -> list[Any]:
    return list(chain.from_iterable(map(dict.values, filter(None, map(states.get, weights)))))


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
    """Stochastic gradient descent, with torch's variant of momentum or without."""

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
    """Adagrad, adaptive subgradient method (Duchi et al., 2011)."""

    _states = ("sum",)
