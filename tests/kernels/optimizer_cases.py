"""Optimizer steps to try, and how far fp32 arithmetic may take each result from float64's.

The bound follows the formulas of `optimizer_step.py`. Every operation is off by at most one
unit roundoff u = 2⁻²⁴ of its result. So a sum is off by u times the sum of magnitudes times the
number of operations on the way (at most 16). A root's error is that of its argument, halved and
relative. Underflow adds at most 2⁻¹⁴⁹ per operation.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from cuda_on_host import draw
from torch import Tensor

from gallery_lib.kernels.optimizer_step import COUNTS_STEPS, NUMBERS, SWITCHES, Hyperparameters

U = 2.0**-24
SCALARS = ("gradient_scale", "found_inf", "learning_rate")
OFF = 16 * U  # of a sum of as many operations
TINY = 2.0**-125  # U times this is the smallest denormal


@dataclass(frozen=True)
class Case:
    """A rule with hyper-parameters; `present` says which of its states it has."""

    name: str
    rule: str
    present: tuple[bool, ...]
    hyperparameters: Hyperparameters


BOTH, DECAY = (True, True), {"weight_decay": 1e-2}
BY_NAME = {
    name: Case(name, name.split()[0], present, Hyperparameters(**values))
    for name, present, values in (
        ("sgd", (False,), {"lr": 0.1, "weight_decay": 1e-4}),
        ("sgd momentum", (True,), {"lr": 0.1, "momentum": 0.9}),
        ("sgd nesterov", (True,),
         {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True, **DECAY}),
        ("rmsprop", (True, False, False), {"lr": 1e-2, "beta2": 0.99}),
        ("rmsprop momentum", (True, True, False),
         {"lr": 1e-2, "beta2": 0.99, "momentum": 0.9, "weight_decay": 1e-4, "maximize": True}),
        ("rmsprop centered", (True, True, True),
         {"lr": 1e-2, "beta2": 0.9, "momentum": 0.5, "weight_decay": 1e-3}),
        ("adamw", BOTH, {"lr": 1e-3, **DECAY}),
        ("adamw maximize", BOTH, {"lr": 1e-2, "beta1": 0.0, "beta2": 0.99, "maximize": True}),
        ("radam", BOTH, {"lr": 1e-2, "weight_decay": 1e-3}),
        ("radam decoupled", BOTH,
         {"lr": 1e-2, "beta2": 0.9, "decoupled_weight_decay": True, **DECAY}),
        ("lamb", BOTH, {"lr": 1e-2, "eps": 1e-6, **DECAY}),
    )
}  # fmt: skip
CASES = tuple(BY_NAME.values())


def plain(tensor: Tensor, offset: int | None = None) -> Tensor:
    return tensor


def step_of(
    case: Case, sizes, dtype=torch.float32, offsets=(None, None), seed=0, exponent=0.0, step=3,
    device=None, **scalars,
):  # fmt: skip
    """Return the operator's arguments for a step of the case, in a device's memory if one is given.

    `offsets` say where weights and gradients begin in it; `scalars` are those of SCALARS that are
    not None.
    """

    def drawn(first, exponent=exponent, dtype=torch.float32):
        seeds = itertools.count(seed + first)
        return [draw.values(size, dtype, next(seeds), exponent) for size in sizes]

    take = plain if device is None else device.take
    weights, gradients = drawn(0, 0.0, dtype), drawn(50, dtype=dtype)
    first, second = drawn(100), drawn(150)
    squares = [s.square() for s in second]
    if case.rule == "rmsprop":  # centered: no negative variance
        squares = [2 * f.square() + s for f, s in zip(first, squares, strict=True)]
    columns = {"sgd": [first], "rmsprop": [squares, second, first]}.get(case.rule, [first, squares])
    present = [k for k, there in enumerate(case.present) if there]
    counts = [torch.tensor([float(step)]) for _ in sizes] if case.rule in COUNTS_STEPS else []
    given = [None if scalars.get(n) is None else torch.tensor([scalars[n]]) for n in SCALARS]
    return (
        case.rule,
        [take(weight, offsets[0]) for weight in weights],
        [take(gradient, offsets[1]) for gradient in gradients],
        [take(state, offsets[k % 2]) for k in present for state in columns[k]],
        present,
        [take(count) for count in counts],
        *(value if value is None else take(value) for value in given),
        [float(getattr(case.hyperparameters, name)) for name in NUMBERS],
        [getattr(case.hyperparameters, name) for name in SWITCHES],
    )


def root_error(exact: Tensor, magnitudes: Tensor) -> Tensor:
    """Return the error of √(computed); computed is off by 16 roundoffs of `magnitudes`."""
    error = OFF * (magnitudes + TINY)
    return torch.minimum(error.sqrt(), error / exact.clamp(min=0).sqrt())


def bounds(
    c: Case,
    weight: Tensor,
    gradient: Tensor,
    old: list[Tensor | None],
    new_weight: Tensor,
    new: list[Tensor | None],
    step: float,
):
    """Return bounds of the absolute errors: of the fp32 weight, and of each state.

    All arguments are in float64. `step` is the one being done, `gradient` is after scaling, and
    `new…` are the exact results.
    """
    h = c.hyperparameters
    coupled = 0.0 if c.rule in ("adamw", "lamb") or h.decoupled_weight_decay else h.weight_decay
    size = gradient.abs() + coupled * weight.abs() + TINY
    if c.rule == "sgd":
        buffer = size if old[0] is None else h.momentum * old[0].abs() + size
        change = h.lr * (size + h.momentum * buffer if h.nesterov else buffer)
        return OFF * (weight.abs() + change + TINY), [OFF * buffer]
    if c.rule == "rmsprop":
        square, buffer, average = old
        squares = h.beta2 * square + (1 - h.beta2) * size * size
        averages = (
            None if average is None else average.abs() + (1 - h.beta2) * (size + average.abs())
        )
        variance = new[0] if average is None else new[0] - new[2] ** 2
        magnitudes = squares if averages is None else squares + averages**2
        root = variance.sqrt() + h.eps
        off = root_error(variance, magnitudes)
        update = OFF * size / root + size * off / (root * (root - off))
        total = size / root
        if buffer is not None:
            total = h.momentum * buffer.abs() + size / root
            update = update + OFF * total
        of_average = None if averages is None else OFF * averages
        errors = [OFF * (squares + TINY), update, of_average]
        return OFF * (weight.abs() + h.lr * total + TINY) + h.lr * update, errors
    averages = old[0].abs() + (1 - h.beta1) * (size + old[0].abs())
    squares = h.beta2 * old[1] + (1 - h.beta2) * size * size + TINY
    errors = [OFF * averages, OFF * squares]
    correction1, correction2 = 1 - h.beta1**step, 1 - h.beta2**step
    root = new[1].sqrt() / correction2**0.5 + h.eps
    off = root_error(new[1], squares) / correction2**0.5
    update = OFF * averages / root + new[0].abs() * off / (root * (root - off))
    if c.rule == "radam":
        rho_inf = 2 / (1 - h.beta2) - 1
        rho = rho_inf - 2 * step * h.beta2**step / correction2
        rectified = (rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)
        update = OFF * averages if rho <= 5 else update * rectified**0.5
    decayed = h.lr * h.weight_decay * weight.abs()
    if c.rule != "lamb":
        return OFF * (weight.abs() + decayed + TINY) + h.lr / correction1 * update, errors
    update = update / correction1 + OFF * h.weight_decay * weight.abs()
    direction = new[0] / correction1 / root + h.weight_decay * weight
    norms = weight.norm(), direction.norm()
    ratio = norms[0] / norms[1] if norms[0] > 0 and norms[1] > 0 else torch.ones(())
    # The norms' own errors: see test_cuda_operators.
    of_ratio = 80 * U + update.norm() / direction.norm().clamp(min=1e-300)
    return OFF * (weight.abs() + TINY) + 1.1 * h.lr * ratio * (
        update + direction.abs() * of_ratio
    ), errors
