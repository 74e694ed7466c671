"""Adam, AdamW, SGD, RMSprop and RAdam that take a step on the CPU in one pass over memory.

Of the last two torch has no fused form; of the others it has one that first copies each gradient that lies in channels_last.
Drop-in: arguments and `state_dict()` are those of torch's classes, from which these are derived, and which take the step for
whatever is not a plain fp32 parameter on the CPU, for options that are not offered, and where there is no C++ compiler.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gallery_lib.kernels import cpu_optimizers
from gallery_lib.kernels.tensor_lists import is_dense, same_layout

_TORCHS = ("centered", "amsgrad", "dampening", "capturable", "differentiable")
"""Options that are left to torch."""


class OnePass(torch.optim.Optimizer, ABC):
    """What they share: whether a step can be taken so, and the states."""

    _counts_steps = True

    @abstractmethod
    def _state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        """Keys of a parameter's state, beside the step count."""

    @abstractmethod
    def _step_group(self, group: dict[str, Any], columns: list[list[Tensor]], steps: list[float]) -> None:
        """Weights, gradients and states of a group, step number `steps[i]` of each."""

    def _suits(self, group: dict[str, Any]) -> bool:
        if any(group.get(name) for name in _TORCHS) or isinstance(group["lr"], Tensor):
            return False
        if getattr(self, "found_inf", None) is not None or getattr(self, "grad_scale", None) is not None:
            return False  # a scaler's, for torch's fused forms
        return all(
            p.dtype is torch.float32
            and p.device.type == "cpu"
            and is_dense(p)
            and p.grad.layout is torch.strided
            and p.grad.dtype is torch.float32
            for p in group["params"]
            if p.grad is not None
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step."""
        if not all(self._suits(group) for group in self.param_groups) or not cpu_optimizers.available():
            return self._torchs_step(closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            names = self._state_names(group)
            states = [self._initialised(p, names) for p in parameters]
            if self._counts_steps and states:
                torch._foreach_add_([state["step"] for state in states], 1.0)
            columns = [parameters, *([p.grad for p in parameters], *([state[name] for state in states] for name in names))]
            laid_out = [
                [t if same_layout(p, t) else torch.empty_like(p).copy_(t) for p, t in zip(parameters, c, strict=True)] for c in columns
            ]
            self._step_group(group, laid_out, [float(state["step"]) for state in states] if self._counts_steps else [])
            for column, used in zip(columns[2:], laid_out[2:], strict=True):
                for state, there in zip(column, used, strict=True):
                    if state is not there:  # from a checkpoint, say, of a model in another layout
                        state.copy_(there)
        return loss

    def _torchs_step(self, closure: Callable[[], Any] | None) -> Any:
        """Without the hooks that torch puts around its class's step when one is made: they are around ours already."""
        theirs = super().step.__func__  # type: ignore[attr-defined]
        return (theirs.__wrapped__ if getattr(theirs, "hooked", False) else theirs)(self, closure)

    def _initialised(self, parameter: Tensor, names: tuple[str, ...]) -> dict[str, Any]:
        """A parameter's state, as torch's class makes it."""
        state = self.state[parameter]
        if self._counts_steps and "step" not in state:
            state["step"] = torch.zeros((), dtype=torch.float32)
        for name in names:
            if state.get(name) is None:
                state[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return state


class _Adams(OnePass):
    """What Adam and those derived from it share."""

    _rule = staticmethod(cpu_optimizers.adam_)

    def _state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq")

    def _step_group(self, group: dict[str, Any], columns: list[list[Tensor]], steps: list[float]) -> None:
        options = {name: group[name] for name in ("lr", "betas", "eps", "weight_decay", "decoupled_weight_decay", "maximize")}
        weights, gradients, averages, squares = columns
        self._rule(weights, gradients, averages, squares, steps, **options)


class Adam(_Adams, torch.optim.Adam):
    """Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2014."""


class AdamW(_Adams, torch.optim.AdamW):
    """Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2017."""


class SGD(OnePass, torch.optim.SGD):
    """Stochastic gradient descent, with momentum (Sutskever et al., 2013; torch's variant) or without."""

    _counts_steps = False

    def _state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()

    def _step_group(self, group: dict[str, Any], columns: list[list[Tensor]], steps: list[float]) -> None:
        weights, gradients, *buffers = columns
        options = {name: group[name] for name in ("lr", "weight_decay", "momentum", "nesterov", "maximize")}
        cpu_optimizers.sgd_(weights, gradients, buffers[0] if buffers else None, **options)


class RMSprop(OnePass, torch.optim.RMSprop):
    """Tieleman and Hinton, Coursera lecture 6.5, 2012; torch's variant, with momentum."""

    def _state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("square_avg", "momentum_buffer") if group["momentum"] > 0 else ("square_avg",)

    def _step_group(self, group: dict[str, Any], columns: list[list[Tensor]], steps: list[float]) -> None:
        weights, gradients, squares, *buffers = columns
        options = {name: group[name] for name in ("lr", "weight_decay", "alpha", "eps", "momentum", "maximize")}
        cpu_optimizers.rmsprop_(weights, gradients, squares, buffers[0] if buffers else None, **options)


class RAdam(_Adams, torch.optim.RAdam):
    """Liu et al., "On the Variance of the Adaptive Learning Rate and Beyond", 2020."""

    _rule = staticmethod(cpu_optimizers.radam_)
