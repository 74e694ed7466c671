"""Adam, AdamW, SGD, RMSprop and RAdam that take a step on the CPU in one pass over memory.

torch has no fused implementation of the last two. For the others it has one that first copies each
gradient that lies in channels_last. The classes are drop-in: arguments and `state_dict()` are those
of torch's classes, from which they are derived.

The closure is called first; then each parameter group is examined. torch's class takes the step of
a group that holds any of these:

- anything but gapless fp32 tensors on the CPU (weights, gradients and states)
- tensors that share memory
- options that are not offered, or a tensor as an option

torch's class also takes the step where there is no C++ compiler, under torch.compile, and under a
dispatch mode, which needs to see operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from gallery_lib.kernels import cpu_optimizers
from gallery_lib.kernels.runtime import cpp
from gallery_lib.kernels.runtime.launch import is_dense, laid_out_as
from gallery_lib.optim import torchs_step

_TORCHS = ("centered", "amsgrad", "dampening", "capturable", "differentiable")
"""Options that are left to torch."""
_NUMBERS = ("lr", "eps", "weight_decay", "momentum", "alpha")
"""Options that have to be numbers here, as betas have; torch takes tensors for some."""
_FP32, _STRIDED = {torch.float32}, {torch.strided}
_COUNTS = {torch.float32, torch.float64}
_PLAIN = {Tensor, nn.Parameter}
"""Types whose memory is their value. A subclass may be something else, a DTensor for instance."""


def takes_options(group: dict[str, Any]) -> bool:
    """Return whether a parameter group asks for nothing that is left to torch."""
    if any(group.get(name) for name in _TORCHS):
        return False
    betas: Sequence[Any] = group.get("betas", ())
    numbers = [*betas, *(group[name] for name in _NUMBERS if name in group)]
    plain = all(isinstance(number, int | float) for number in numbers)
    return plain and all(0.0 <= beta < 1.0 for beta in betas)


def _are_plain(tensors: Sequence[Tensor]) -> bool:
    """Return whether all tensors hold fp32 values in CPU memory that can be read directly."""
    return (
        _PLAIN.issuperset(map(type, tensors))
        and _FP32.issuperset(map(attrgetter("dtype"), tensors))
        and _STRIDED.issuperset(map(attrgetter("layout"), tensors))
        and all(map(attrgetter("is_cpu"), tensors))
        and not any(map(Tensor.is_neg, tensors))
        and not any(map(Tensor._is_zerotensor, tensors))
    )


def _are_counts(steps: Sequence[Any]) -> bool:
    """Return whether these are step counts as torch makes them, one for each parameter."""
    return (
        {Tensor}.issuperset(map(type, steps))
        and _COUNTS.issuperset(map(attrgetter("dtype"), steps))
        and all(map(attrgetter("is_cpu"), steps))
        and not any(map(Tensor.dim, steps))
    )


def _shapes(tensors: Sequence[Tensor]) -> tuple[list[int], list[int]]:
    """Return dimensions and sizes of all tensors, in lists that are fast to compare."""
    return list(map(Tensor.dim, tensors)), list(chain.from_iterable(map(Tensor.size, tensors)))


def _laid_out(column: list[Tensor], weights: list[Tensor], strides: list[Any]) -> list[Tensor]:
    """Return `laid_out_as(weights, column)`, fast where the strides are the weights'."""
    if list(map(Tensor.stride, column)) == strides:
        return column
    return laid_out_as(weights, column)


class OnePass(torchs_step.PickledAsTorchs):
    """Base of the one-pass optimizers: owns the states and decides whether a group qualifies."""

    _rule: Any  # of kernels.cpu_optimizers
    _options: tuple[str, ...]
    _states: tuple[str, ...] = ("exp_avg", "exp_avg_sq")
    """Keys of a parameter's state, beside the step count; momentum's is the last."""
    _counts_steps = True
    _begins_with_zeros = False
    """Whether a missing state means zeros. For other classes torch's own step raises KeyError."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; return the closure's loss, or None without a closure."""
        loss = torchs_step.loss_of(closure)
        if not self._may_run():
            torchs_step.take(self, super().step, self.param_groups)
            return loss
        for group in self.param_groups:
            if not self._take_group(group):
                torchs_step.take(self, super().step, [group])
        return loss

    def _may_run(self) -> bool:
        scaled = any(getattr(self, name, None) is not None for name in ("found_inf", "grad_scale"))
        return not (
            scaled  # a scaler sets them for torch's fused forms
            or self.defaults.get("differentiable")
            or torch.compiler.is_compiling()
            or _get_current_dispatch_mode() is not None
            or not cpu_optimizers.available()
        )

    def _take_group(self, group: dict[str, Any]) -> bool:
        """Take the step of a group; return False, with nothing changed, where torch has to."""
        weights: list[Tensor] = [p for p in group["params"] if p.grad is not None]
        if not weights:
            return True
        gradients: list[Any] = [p.grad for p in weights]
        names = self._states[: None if group.get("momentum", 1) else -1]
        if not takes_options(group) or not self._are_suitable(weights, gradients, names):
            return False
        has_state = bool(names) or self._counts_steps
        states = [self.state[p] for p in weights] if has_state else []
        for p, state in zip(weights, states, strict=has_state):
            if not state or self._begins_with_zeros:  # a state of other classes is complete
                self._initialise(state, p, names, group)
        counts = [state["step"] for state in states] if self._counts_steps else []
        steps = [count + 1.0 for count in torch.stack(counts).tolist()] if counts else []
        if counts and not min(steps) >= 1.0:
            return False
        strides = list(map(Tensor.stride, weights))
        columns = [[state[name] for state in states] for name in names]
        used = [_laid_out(column, weights, strides) for column in columns]
        rows: list[Any] = [weights, _laid_out(gradients, weights, strides), *used]
        rows += [None] * (len(self._states) - len(names))  # no momentum
        options = {name: group[name] for name in self._options}
        try:
            self._rule(*rows, **({"steps": steps} if "betas" in options else {}), **options)
        except cpp.Refused as refused:
            if refused.reason in (cpp.OVERLAP, cpp.UNALIGNED):
                return False  # operators of torch take such tensors one after the other
            raise
        if counts:
            torch._foreach_add_(counts, 1.0)
        for column, there in zip(columns, used, strict=True):
            if column is not there:
                for state, copy in zip(column, there, strict=True):
                    if state is not copy:  # from a checkpoint of a model in another layout, say
                        state.copy_(copy)
        return True

    def _are_suitable(
        self, weights: list[Tensor], gradients: list[Any], names: tuple[str, ...]
    ) -> bool:
        """Return whether all tensors of a group, existing states included, suit the C++ code."""
        states = [self.state.get(p) for p in weights]
        columns = [weights, gradients]
        for name in names:
            column = [
                state.get(name) if state else p for p, state in zip(weights, states, strict=True)
            ]
            if any(tensor is None for tensor in column):
                if not self._begins_with_zeros:
                    return False
                column = [p if t is None else t for p, t in zip(weights, column, strict=True)]
            columns.append(column)
        if not all(map(_are_plain, columns)) or len(set(map(id, weights))) < len(weights):
            return False
        shapes = _shapes(weights)
        if any(_shapes(column) != shapes for column in columns[1:]):
            return False
        counts = [state.get("step") for state in states if state] if self._counts_steps else []
        return _are_counts(counts) and all(map(is_dense, weights))

    def _initialise(
        self, state: dict[str, Any], p: Tensor, names: tuple[str, ...], group: dict[str, Any]
    ) -> None:
        """Create the missing entries of a parameter's state as torch's class does."""
        if self._counts_steps and not state:
            wide = torch.get_default_dtype() is torch.float64 and not group.get("fused")
            state["step"] = torch.zeros((), dtype=torch.float64 if wide else torch.float32)
        for name in names:
            if state.get(name) is None:
                state[name] = torch.zeros_like(p, memory_format=torch.preserve_format)


_ADAM = ("lr", "betas", "eps", "weight_decay", "decoupled_weight_decay", "maximize")


class Adam(OnePass, torch.optim.Adam):
    """Adam (Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2014)."""

    _rule, _options = staticmethod(cpu_optimizers.adam_), _ADAM


class AdamW(OnePass, torch.optim.AdamW):
    """AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2017)."""

    _rule, _options = staticmethod(cpu_optimizers.adam_), _ADAM


class RAdam(OnePass, torch.optim.RAdam):
    """RAdam (Liu et al., "On the Variance of the Adaptive Learning Rate and Beyond", 2020)."""

    _rule, _options = staticmethod(cpu_optimizers.radam_), _ADAM


class SGD(OnePass, torch.optim.SGD):
    """Stochastic gradient descent, with torch's variant of momentum or without."""

    _rule = staticmethod(cpu_optimizers.sgd_)
    _options = ("lr", "weight_decay", "momentum", "nesterov", "maximize")
    _states = ("momentum_buffer",)
    _counts_steps = False
    _begins_with_zeros = True


class RMSprop(OnePass, torch.optim.RMSprop):
    """RMSprop (Tieleman and Hinton, Coursera lecture 6.5, 2012) with momentum, torch's variant."""

    _rule = staticmethod(cpu_optimizers.rmsprop_)
    _options = ("lr", "weight_decay", "alpha", "eps", "momentum", "maximize")
    _states = ("square_avg", "momentum_buffer")
