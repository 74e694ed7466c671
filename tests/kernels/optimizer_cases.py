"""Optimizer steps to try, and how far fp32 arithmetic may take each result from float64's.

The bound follows the formulas of `optimizer_step.py`. Every operation is off by at most one
unit roundoff u = 2⁻²⁴ of its result. So a sum is off by u times the sum of magnitudes times the
number of operations on the way (at most 16). A root's error is that of its argument, halved and
relative. Underflow adds at most 2⁻¹⁴⁹ per operation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gallery_lib.kernels.optimizer_step import Hyperparameters

U = 2.0**-24
OPERATIONS = 16
TINY = 2.0**-125  # U times this is the smallest denormal


@dataclass(frozen=True)
class Case:
    """A rule with hyper-parameters; `present` says which of its states it has."""

    name: str
    rule: str
    present: tuple[bool, ...]
    hyperparameters: Hyperparameters


def case(name: str, rule: str, present: tuple[bool, ...], **values) -> Case:
    return Case(name, rule, present, Hyperparameters(**values))


CASES = (
    case("sgd", "sgd", (False,), lr=0.1, weight_decay=1e-4),
    case("sgd momentum", "sgd", (True,), lr=0.1, momentum=0.9),
    case(
        "sgd nesterov",
        "sgd",
        (True,),
        lr=0.1,
        momentum=0.9,
        nesterov=True,
        weight_decay=1e-2,
        maximize=True,
    ),
    case("rmsprop", "rmsprop", (True, False, False), lr=1e-2, beta2=0.99),
    case(
        "rmsprop momentum",
        "rmsprop",
        (True, True, False),
        lr=1e-2,
        beta2=0.99,
        momentum=0.9,
        weight_decay=1e-4,
        maximize=True,
    ),
    case(
        "rmsprop centered",
        "rmsprop",
        (True, True, True),
        lr=1e-2,
        beta2=0.9,
        momentum=0.5,
        weight_decay=1e-3,
    ),
    case("adamw", "adamw", (True, True), lr=1e-3, weight_decay=1e-2),
    case(
        "adamw maximize",
        "adamw",
        (True, True),
        lr=1e-2,
        weight_decay=0.0,
        beta1=0.0,
        beta2=0.99,
        maximize=True,
    ),
    case("radam", "radam", (True, True), lr=1e-2, weight_decay=1e-3),
    case(
        "radam decoupled",
        "radam",
        (True, True),
        lr=1e-2,
        weight_decay=1e-2,
        beta2=0.9,
        decoupled_weight_decay=True,
    ),
    case("lamb", "lamb", (True, True), lr=1e-2, weight_decay=1e-2, eps=1e-6),
)


def root_error(exact: Tensor, magnitudes: Tensor) -> Tensor:
    """Return the error of √(computed); computed is off by OPERATIONS roundoffs of `magnitudes`."""
    error = OPERATIONS * U * (magnitudes + TINY)
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
        return OPERATIONS * U * (weight.abs() + change + TINY), [OPERATIONS * U * buffer]
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
        update = OPERATIONS * U * size / root + size * off / (root * (root - off))
        moved = (
            update
            if buffer is None
            else update + OPERATIONS * U * (h.momentum * buffer.abs() + size / root)
        )
        total = size / root + (0 if buffer is None else h.momentum * buffer.abs())
        errors = [
            OPERATIONS * U * (squares + TINY),
            moved,
            None if averages is None else OPERATIONS * U * averages,
        ]
        return OPERATIONS * U * (weight.abs() + h.lr * total + TINY) + h.lr * moved, errors
    averages = old[0].abs() + (1 - h.beta1) * (size + old[0].abs())
    squares = h.beta2 * old[1] + (1 - h.beta2) * size * size + TINY
    errors = [OPERATIONS * U * averages, OPERATIONS * U * squares]
    correction1, correction2 = 1 - h.beta1**step, 1 - h.beta2**step
    root, off = (
        new[1].sqrt() / correction2**0.5 + h.eps,
        root_error(new[1], squares) / correction2**0.5,
    )
    update = OPERATIONS * U * averages / root + new[0].abs() * off / (root * (root - off))
    if c.rule == "radam":
        rho_inf = 2 / (1 - h.beta2) - 1
        rho = rho_inf - 2 * step * h.beta2**step / correction2
        if rho <= 5:
            update = OPERATIONS * U * averages
        else:
            update = (
                update
                * ((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)) ** 0.5
            )
    decayed = h.lr * h.weight_decay * weight.abs()
    if c.rule != "lamb":
        return OPERATIONS * U * (
            weight.abs() + decayed + TINY
        ) + h.lr / correction1 * update, errors
    update = update / correction1 + OPERATIONS * U * h.weight_decay * weight.abs()
    direction = new[0] / correction1 / root + h.weight_decay * weight
    norms = weight.norm(), direction.norm()
    ratio = norms[0] / norms[1] if norms[0] > 0 and norms[1] > 0 else torch.ones(())
    # The norms' own errors: see test_gradient_statistics.
    of_ratio = 80 * U + update.norm() / direction.norm().clamp(min=1e-300)
    return OPERATIONS * U * (weight.abs() + TINY) + 1.1 * h.lr * ratio * (
        update + direction.abs() * of_ratio
    ), errors
