"""Optimizer rules on one tensor in plain torch: CPU implementation and reference of the kernels.

The formulas are torch.optim's; LAMB's are its paper's. Arithmetic is in fp32, or in fp64 for fp64
weights. Nothing waits for a CUDA device: `torch.where` decides there whether a step is skipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Hyperparameters:
    """Hyper-parameters of one parameter group, under torch's names.

    Each rule reads those it knows. `beta2` is RMSprop's `alpha`.
    """

    lr: float
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    momentum: float = 0.0
    nesterov: bool = False
    decoupled_weight_decay: bool = False
    maximize: bool = False
    zero_gradients: bool = False


Rule = Callable[
    [Tensor, Tensor, Sequence[Tensor | None], Tensor | None, "Tensor | float", Hyperparameters],
    tuple[Tensor, list[Tensor | None]],
]
"""(weight, gradient, states, step, learning rate, hyper-parameters) → (new weight, new states)."""


def _bias_correction(beta: float, step: Tensor) -> Tensor:
    """Return 1 - beta^step in fp64, without cancellation."""
    return -torch.expm1(step.double() * (math.log(beta) if beta > 0 else -math.inf))


def _decayed(gradient, weight, decay):
    """Return the gradient with coupled weight decay.

    Without decay the weight is left out, since 0 · inf is NaN.
    """
    return gradient + decay * weight if decay else gradient


def sgd(weight, gradient, states, step, lr, h):
    """Return the new weight and state of SGD.

    The state is the momentum buffer, or None. It starts at 0, which makes the first step torch's.
    """
    (buffer,) = states
    gradient = _decayed(gradient, weight, h.weight_decay)
    if buffer is not None:
        buffer = h.momentum * buffer + gradient
        gradient = gradient + h.momentum * buffer if h.nesterov else buffer
    return weight - lr * gradient, [buffer]


def rmsprop(weight, gradient, states, step, lr, h):
    """Return the new weight and states of RMSprop.

    States: average of squares; momentum buffer or None; average of gradients (centered) or None.
    """
    square, buffer, average = states
    gradient = _decayed(gradient, weight, h.weight_decay)
    square = h.beta2 * square + (1 - h.beta2) * gradient * gradient
    variance = square
    if average is not None:
        average = average + (1 - h.beta2) * (gradient - average)
        variance = square - average * average
    update = gradient / (variance.sqrt() + h.eps)
    if buffer is not None:
        update = buffer = h.momentum * buffer + update
    return weight - lr * update, [square, buffer, average]


def _moments(gradient, states, h):
    average, square = states
    return average + (1 - h.beta1) * (gradient - average), h.beta2 * square + (
        1 - h.beta2
    ) * gradient * gradient


def adamw(weight, gradient, states, step, lr, h):
    """Return the new weight and states of AdamW.

    States: averages of gradients and of squares.
    """
    average, square = _moments(gradient, states, h)
    root = square.sqrt() * _bias_correction(h.beta2, step).rsqrt() + h.eps
    return weight * (1 - lr * h.weight_decay) - (lr / _bias_correction(h.beta1, step)) * (
        average / root
    ), [average, square]


def radam(weight, gradient, states, step, lr, h):
    """Return the new weight and states of RAdam; its states are AdamW's."""
    decay = h.weight_decay
    if h.decoupled_weight_decay:
        shrunk = weight * (1 - lr * decay)
    else:
        shrunk, gradient = weight, _decayed(gradient, weight, decay)
    average, square = _moments(gradient, states, h)
    correction2 = _bias_correction(h.beta2, step)
    rho_inf = 2 / (1 - h.beta2) - 1
    rho = rho_inf - 2 * step.double() * (1 - correction2) / correction2
    rectified = (
        correction2 * (rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)
    )
    rate = (
        lr
        / _bias_correction(h.beta1, step)
        * torch.where(rho > 5, rectified.clamp(min=0).sqrt(), 1.0)
    )
    return shrunk - rate * torch.where(rho > 5, average / (square.sqrt() + h.eps), average), [
        average,
        square,
    ]


def lamb(weight, gradient, states, step, lr, h):
    """Return the new weight and states of LAMB; its states are AdamW's.

    You et al., "Large Batch Optimization for Deep Learning", 2020, with φ(x) = x.
    """
    average, square = _moments(gradient, states, h)
    root = square.sqrt() * _bias_correction(h.beta2, step).rsqrt() + h.eps
    update = average * _bias_correction(h.beta1, step).reciprocal() / root + h.weight_decay * weight
    norms = [torch.linalg.vector_norm(t, dtype=torch.float64) for t in (weight, update)]
    ratio = torch.where((norms[0] > 0) & (norms[1] > 0), norms[0] / norms[1], 1.0)
    return weight - lr * ratio * update, [average, square]


RULES: dict[str, Rule] = {
    "sgd": sgd,
    "rmsprop": rmsprop,
    "adamw": adamw,
    "radam": radam,
    "lamb": lamb,
}
STATES = {"sgd": 1, "rmsprop": 3, "adamw": 2, "radam": 2, "lamb": 2}
"""Number of states of a tensor, by rule; some may be None."""
COUNTS_STEPS = frozenset({"adamw", "radam", "lamb"})
"""Rules that read the step count."""


@dataclass(frozen=True)
class Step:
    """Inputs of one step: the tensors of `optimizer_step`, None where one is absent.

    `states[k][i]` is state k of tensor i.
    """

    rule: str
    weights: Sequence[Tensor]
    gradients: Sequence[Tensor]
    states: Sequence[Sequence[Tensor | None]]
    masters: Sequence[Tensor | None]
    steps: Sequence[Tensor | None]
    skipped: Tensor | None = None
    gradient_scale: Tensor | None = None
    found_inf: Tensor | None = None
    clip_factor: Tensor | None = None
    learning_rate: Tensor | None = None


@torch.no_grad()
def reference_step(s: Step, h: Hyperparameters) -> None:
    """Run one step in place, in plain torch."""
    skip = None if s.found_inf is None else s.found_inf.reshape(()) != 0
    if skip is not None and skip.device.type == "cpu":  # there is no device to wait for
        skip = None if not skip.item() else skip
    if skip is not None and s.skipped is not None:
        s.skipped.add_(skip.to(s.skipped.dtype))
    factor: Tensor | float = 1.0 if s.clip_factor is None else s.clip_factor.reshape(())
    if s.gradient_scale is not None:
        factor = factor / s.gradient_scale.reshape(())
    if h.maximize:
        factor = -factor
    lr = h.lr if s.learning_rate is None else s.learning_rate.reshape(()).double()

    def keep(old: Tensor, new: Tensor) -> None:
        old.copy_(new if skip is None else torch.where(skip, old, new.to(old.dtype)))

    for i, (weight, gradient, master, step) in enumerate(
        zip(s.weights, s.gradients, s.masters, s.steps, strict=True)
    ):
        arithmetic = torch.float64 if weight.dtype is torch.float64 else torch.float32
        old_states = [column[i] for column in s.states]
        if step is not None:
            step.add_(1 if skip is None else (~skip).to(step.dtype))
        source = weight if master is None else master
        wide = [None if state is None else state.to(arithmetic) for state in old_states]
        new_weight, new_states = RULES[s.rule](
            source.to(arithmetic), gradient.to(arithmetic) * factor, wide, step, lr, h
        )
        for old, new in zip(old_states, new_states, strict=True):
            if old is not None and new is not None:
                keep(old, new)
        if master is not None:
            keep(master, new_weight)
        keep(weight, new_weight)
    zero_gradients(s.gradients, h)


def zero_gradients(gradients: Iterable[Tensor], h: Hyperparameters) -> None:
    """Zero the gradients in place if the hyper-parameters ask for it; a skipped step does too."""
    if h.zero_gradients:
        for gradient in gradients:
            gradient.zero_()
