"""One optimizer step over many tensors at once, with gradient scaling: `gallery::optimizer_step_`.

One pass does all of the work: unscale, skip when `found_inf` is set, update states and weights.
Nothing waits for the device: step counters are tensors on it, and on CUDA `torch.where` decides in
the reference whether a step is skipped. Rules follow torch.optim; LAMB follows its paper, in three
launches, since every update needs the norms of its whole tensor. Arithmetic is in fp32, or in fp64
for fp64 weights.

The operator takes flat lists without None, and neither dataclasses nor dictionaries.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gallery_lib.kernels.runtime.launch import (
    DOUBLE,
    ELEMENTS,
    INT,
    POINTER,
    Launch,
    each,
    filled,
    laid_out_as,
    packed,
    run,
    structure,
    tensor_list,
    tensors_of_a_launch,
)
from gallery_lib.kernels.runtime.operators import kernel_device, register


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


NUMBERS = ("lr", "weight_decay", "beta1", "beta2", "eps", "momentum")
SWITCHES = ("decoupled_weight_decay", "nesterov", "maximize")
"""Hyper-parameters that are on or off, in the order of `enum Flag` in `optimizer_step.cuh`."""


def optimizer_step(
    rule: str,
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    states: Sequence[Sequence[Tensor] | None],
    hyperparameters: Hyperparameters,
    *,
    steps: Sequence[Tensor] = (),
    gradient_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    learning_rate: Tensor | None = None,
) -> None:
    """Run one step of `rule`, in place.

    Args:
        rule: a name in `RULES`.
        weights: tensors of one dtype and device.
        gradients: a tensor for each weight, of its dtype and shape.
        states: as many columns as the rule has states. A column holds a tensor for each weight, or
            is None where the rule does without. Tensors are fp32 (fp64 for fp64 weights), dense and
            laid out as the weight.
        hyperparameters: hyper-parameters of the parameter group.
        steps: an fp32 scalar for each weight, which counts the steps done. Rules that read the
            count need them.
        gradient_scale: fp32 scalar by which gradients are divided.
        found_inf: fp32 scalar; when it is not 0, the step is skipped.
        learning_rate: fp32 scalar used in place of `lr`.
    """
    if not weights:
        return
    assert len(states) == STATES[rule] and (steps or rule not in COUNTS_STEPS)
    present = [k for k, column in enumerate(states) if column is not None]
    flat = [tensor for column in states if column is not None for tensor in column]
    lists = (list(weights), list(gradients), flat, present, list(steps))
    scalars = (gradient_scale, found_inf, learning_rate)
    numbers = [float(getattr(hyperparameters, name)) for name in NUMBERS]
    switches = [bool(getattr(hyperparameters, name)) for name in SWITCHES]
    torch.ops.gallery.optimizer_step_(rule, *lists, *scalars, numbers, switches)
    torch.autograd.graph.increment_version([*weights, *flat, *steps])


# --------------------------------------------------------------------------------------------------
# The rules on one tensor in plain torch: (weight, gradient, states, step, learning rate,
# hyper-parameters) → (new weight, new states).


def _bias_correction(beta: float, step: Tensor) -> Tensor:
    """Return 1 - beta^step in fp64, without cancellation."""
    return -torch.expm1(step.double() * (math.log(beta) if beta > 0 else -math.inf))


def _decayed(gradient, weight, decay):
    return gradient + decay * weight if decay else gradient  # 0 · inf is NaN


def _sgd(weight, gradient, states, step, lr, h):
    (buffer,) = states  # None without momentum; it starts at 0, which makes the first step torch's
    gradient = _decayed(gradient, weight, h.weight_decay)
    if buffer is not None:
        buffer = h.momentum * buffer + gradient
        gradient = gradient + h.momentum * buffer if h.nesterov else buffer
    return weight - lr * gradient, [buffer]


def _rmsprop(weight, gradient, states, step, lr, h):
    square, buffer, average = states  # the last two may be None; `average` is for `centered`
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
    new_square = h.beta2 * square + (1 - h.beta2) * gradient * gradient
    return [average + (1 - h.beta1) * (gradient - average), new_square]


def _adamw(weight, gradient, states, step, lr, h):
    average, square = moments = _moments(gradient, states, h)
    root = square.sqrt() * _bias_correction(h.beta2, step).rsqrt() + h.eps
    rate = lr / _bias_correction(h.beta1, step)
    return weight * (1 - lr * h.weight_decay) - rate * (average / root), moments


def _radam(weight, gradient, states, step, lr, h):
    shrunk = weight
    if h.decoupled_weight_decay:
        shrunk = weight * (1 - lr * h.weight_decay)
    else:
        gradient = _decayed(gradient, weight, h.weight_decay)
    average, square = moments = _moments(gradient, states, h)
    correction2 = _bias_correction(h.beta2, step)
    rho_inf = 2 / (1 - h.beta2) - 1
    rho = rho_inf - 2 * step.double() * (1 - correction2) / correction2
    rectified = (rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)
    factor = torch.where(rho > 5, (correction2 * rectified).clamp(min=0).sqrt(), 1.0)
    rate = lr / _bias_correction(h.beta1, step) * factor
    return shrunk - rate * torch.where(rho > 5, average / (square.sqrt() + h.eps), average), moments


def _lamb(weight, gradient, states, step, lr, h):
    """Return the weight after LAMB's step, and the new moments.

    AdamW's update is scaled by the tensor's trust ratio, norm of the weight over norm of the
    update; it is 1 where either is 0. Source: You et al., "Large Batch Optimization for Deep
    Learning", 2020, with φ(x) = x.
    """
    average, square = moments = _moments(gradient, states, h)
    root = square.sqrt() * _bias_correction(h.beta2, step).rsqrt() + h.eps
    update = average * _bias_correction(h.beta1, step).reciprocal() / root + h.weight_decay * weight
    weight_norm = torch.linalg.vector_norm(weight, dtype=torch.float64)
    update_norm = torch.linalg.vector_norm(update, dtype=torch.float64)
    has_norms = (weight_norm > 0) & (update_norm > 0)
    trust_ratio = torch.where(has_norms, weight_norm / update_norm, 1.0)
    return weight - lr * trust_ratio * update, moments


RULES: dict[str, Callable[..., tuple[Tensor, list[Tensor | None]]]] = {
    "sgd": _sgd,
    "rmsprop": _rmsprop,
    "adamw": _adamw,
    "radam": _radam,
    "lamb": _lamb,
}
STATES = {"sgd": 1, "rmsprop": 3, "adamw": 2, "radam": 2, "lamb": 2}
"""Number of states of a tensor, by rule; some may be None."""
COUNTS_STEPS = frozenset({"adamw", "radam", "lamb"})
"""Rules that read the step count."""


def _columns(
    rule: str, states: list[Tensor], present: list[int], count: int
) -> list[Sequence[Tensor] | None]:
    """Return the states of `count` tensors in columns; absent ones are None."""
    columns: list[Sequence[Tensor] | None] = [None] * STATES[rule]
    for place, k in enumerate(present):
        columns[k] = states[place * count : (place + 1) * count]
    return columns


def _hyperparameters(numbers: list[float], switches: list[bool]) -> Hyperparameters:
    values = zip(NUMBERS + SWITCHES, [*numbers, *switches], strict=True)
    return Hyperparameters(**dict(values))  # type: ignore[arg-type]


@torch.no_grad()
def _reference(
    rule: str,
    weights: list[Tensor],
    gradients: list[Tensor],
    states: list[Tensor],
    present: list[int],
    steps: list[Tensor],
    *rest: Any,
) -> None:
    gradient_scale, found_inf, learning_rate, *options = rest
    h = _hyperparameters(*options)
    skip = None if found_inf is None else found_inf.reshape(()) != 0
    if skip is not None and skip.device.type == "cpu":  # there is no device to wait for
        skip = None if not skip.item() else skip
    factor: Tensor | float = -1.0 if h.maximize else 1.0
    if gradient_scale is not None:
        factor = factor / gradient_scale.reshape(())
    lr = h.lr if learning_rate is None else learning_rate.reshape(()).double()

    def keep(old: Tensor, new: Tensor) -> None:
        old.copy_(new if skip is None else torch.where(skip, old, new.to(old.dtype)))

    columns = _columns(rule, states, present, len(weights))
    for i, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
        wide = torch.float64 if weight.dtype is torch.float64 else torch.float32
        step = steps[i] if steps else None
        if step is not None:
            step.add_(1 if skip is None else (~skip).to(step.dtype))
        old_states = [None if column is None else column[i] for column in columns]
        given = [None if state is None else state.to(wide) for state in old_states]
        scaled = gradient.to(wide) * factor
        new_weight, new_states = RULES[rule](weight.to(wide), scaled, given, step, lr, h)
        for old, new in zip(old_states, new_states, strict=True):
            if old is not None and new is not None:
                keep(old, new)
        keep(weight, new_weight)


# --------------------------------------------------------------------------------------------------
# The kernels.

_ARGUMENTS = {
    **each(POINTER, "gradient_scale found_inf learning_rate_on_device partial trust_ratio"),
    **each(DOUBLE, "learning_rate weight_decay beta1 beta2 log_beta1 log_beta2 epsilon momentum"),
    "flags": INT,
}
"""Arguments behind the list of tensors: weight, gradient, three states, step."""
_OF_A_STEP = [name for name in _ARGUMENTS if name not in ("partial", "trust_ratio")]


class PackedStep:
    """Launches of a step over columns: weights, gradients, three of states, counts of steps.

    It holds addresses alone, and may be taken again while these and all sizes are the same. Columns
    of states and counts may be None.
    """

    def __init__(self, rule: str, columns: Sequence[Sequence[Tensor] | None]) -> None:
        first = (columns[0] or ())[0]
        tensors = tensors_of_a_launch(first.device)
        kind = structure(tensors=tensor_list(len(columns), tensors), **_ARGUMENTS)
        defines = (*ELEMENTS[first.dtype], ("TENSORS", str(tensors)))
        launch: Any = functools.partial(Launch, defines=defines)
        self._device, self._memory = first.device, list[Any]()
        self._parts: list[tuple[Any, list[Launch], slice]] = []
        for number, (packing, blocks) in enumerate(packed(columns, tensors)):
            partial = ratio = None
            launches = [("optimizers.cu", "advance", 1), ("optimizers.cu", rule, blocks)]
            if rule == "lamb":
                partial = first.new_empty(2 * blocks, dtype=torch.float64)
                ratio = first.new_empty(packing.count, dtype=torch.float32)
                launches[1:] = [
                    ("lamb.cu", "lamb_moments", blocks),
                    ("lamb.cu", "lamb_trust_ratios", packing.count),
                    ("lamb.cu", "lamb_update", blocks),
                ]
            arguments = filled(kind, packing, None, None, None, partial, ratio)
            made = [launch(*name, blocks=n, arguments=arguments) for *name, n in launches]
            part = slice(number * tensors, (number + 1) * tensors)
            self._parts.append((arguments, made, part))
            self._memory += partial, ratio

    def take(self, h: Hyperparameters, scalars: Any, gradients: list[int] | None = None) -> None:
        """Enqueue the launches with these options, and gradients at other addresses.

        `scalars` are gradient scale, overflow flag and learning rate on the device, or None.
        """
        addresses = [None if scalar is None else scalar.data_ptr() for scalar in scalars]
        logarithms = [math.log(beta) if beta > 0 else -math.inf for beta in (h.beta1, h.beta2)]
        rates = (h.lr, h.weight_decay, h.beta1, h.beta2, *logarithms, h.eps, h.momentum)
        flags = sum(1 << bit for bit, name in enumerate(SWITCHES) if getattr(h, name))
        values = dict(zip(_OF_A_STEP, (*addresses, *rates, flags), strict=True))
        for arguments, launches, part in self._parts:
            if gradients is not None:
                arguments.tensors.pointers[1][: arguments.tensors.count] = gradients[part]
            for name, value in values.items():
                setattr(arguments, name, value)
            for launch in launches:
                run(launch, self._device)


def _kernel(
    rule: str,
    weights: list[Tensor],
    gradients: list[Tensor],
    states: list[Tensor],
    present: list[int],
    steps: list[Tensor],
    *rest: Any,
) -> None:
    *scalars, numbers, switches = rest
    of_states = [*_columns(rule, states, present, len(weights)), None, None][:3]
    columns = [weights, laid_out_as(weights, gradients), *of_states, steps or None]
    PackedStep(rule, columns).take(_hyperparameters(numbers, switches), scalars)


register(
    "optimizer_step_",
    "(str rule, Tensor(a!)[] weights, Tensor[] gradients, Tensor(b!)[] states, int[] present, "
    "Tensor(c!)[] steps, Tensor? gradient_scale, Tensor? found_inf, Tensor? learning_rate, "
    "float[] numbers, bool[] switches) -> ()",
    reference=_reference,
    kernel=_kernel,
    device=lambda rule, weights, *_: kernel_device(weights[0]),
    fake=lambda *_: None,
)
