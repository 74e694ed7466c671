"""Adam, AdamW, SGD and Adagrad that use torch's fused implementation in each step that allows it.

torch decides once, by `fused=True`, and then raises for sparse gradients and complex weights. Here
each parameter group is examined after the closure. The fused implementation takes the group, or
torch's own choice of the others does. Options, states and `state_dict()` are those of torch's
classes; the option `fused` keeps its value. A group in which `foreach`, `fused`, `capturable` or
`differentiable` was chosen is left to torch. `adoption.accelerate_optimizer` makes the objects.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gallery_lib.kernels.runtime.tensor_lists import is_dense, same_layout
from gallery_lib.optim import torchs_step

_PLAIN = {Tensor, nn.Parameter}
_DTYPES = ({torch.float32}, {torch.float64})
_DEVICE, _DTYPE, _LAYOUT, _SHAPE = (
    vars(torch._C.TensorBase)[name].__get__ for name in ("device", "dtype", "layout", "shape")
)


def choice(group: dict[str, Any]) -> str | None:
    """Return which of torch's implementations a group asks for, as `option=value`, or None."""
    for name in ("foreach", "fused"):
        if group.get(name) is not None:
            return f"{name}={group[name]}"
    forms = ("capturable", "differentiable")
    return next((f"{name}=True" for name in forms if group.get(name)), None)


class Fused(torchs_step.ByGroup):
    """Base of the fused optimizers: decides for each group whether the fused step suits it."""

    _states: tuple[str, ...]

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
        if not self._may_be_fused(group):
            return False
        self._prepare(group)
        torchs_step.take(self, step, [{**group, "fused": True}])
        return True

    def _may_be_fused(self, group: dict[str, Any]) -> bool:
        """Return whether weights, gradients and states have one dtype, device and layout.

        It runs in every step, for every weight: most lines are one loop in C.
        """
        options = [value for name, value in group.items() if name != "params"]
        options += [part for value in options if isinstance(value, tuple | list) for part in value]
        if (
            torch.compiler.is_compiling()
            or self.defaults.get("differentiable")
            or choice(group) is not None
            or any(isinstance(value, Tensor) for value in options)
        ):
            return False
        weights = [p for p in group["params"] if p.grad is not None]
        gradients = [p.grad for p in weights]
        owned = [(p, state) for p in weights if (state := self.state.get(p))]
        counts = [state["step"] for _, state in owned if state.get("step") is not None]
        columns = [(weights, gradients)]
        for name in self._states:
            there = [(p, state[name]) for p, state in owned if state.get(name) is not None]
            columns.append(([p for p, _ in there], [value for _, value in there]))
        tensors = [*weights, *(one for _, column in columns for one in column)]
        return (
            set(map(type, tensors)) <= _PLAIN
            and set(map(_LAYOUT, tensors)) <= {torch.strided}
            and (not tensors or set(map(_DTYPE, tensors)) in _DTYPES)
            and len(set(map(_DEVICE, tensors))) <= 1
            and all(map(is_dense, weights))
            and all(_laid_out_alike(own, column) for own, column in columns)
            and not any(map(Tensor.is_neg, tensors))
            # torch's other implementations decay a gradient that is its weight with it.
            and set(map(Tensor.data_ptr, weights)).isdisjoint(
                gradient.data_ptr() for gradient in gradients if gradient.numel()
            )
            and len(set(map(id, weights))) == len(weights)
            and all(isinstance(count, Tensor) for count in counts)
        )

    def _prepare(self, group: dict[str, Any]) -> None:
        """Move step counts to their weights in fp32, where the fused implementation counts."""
        for p in group["params"]:
            step = None if p.grad is None else (self.state.get(p) or {}).get("step")
            if step is not None and (step.device != p.device or step.dtype is not torch.float32):
                self.state[p]["step"] = step.to(p.device, torch.float32)


def _laid_out_alike(weights: list[Tensor], column: list[Tensor]) -> bool:
    same = (list(map(kind, weights)) == list(map(kind, column)) for kind in (_SHAPE, Tensor.stride))
    return all(same) or all(map(same_layout, weights, column))


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
