"""Steps of Adam, AdamW, SGD, RMSprop and RAdam over many fp32 tensors on the CPU.

`cpu/optimizers.cpp` goes over memory once. On the CPU, torch computes RMSprop and RAdam operator by
operator. Each operator reads and writes whole tensors, so the traffic is about three times as much.
For the other rules torch has a fused form, which first copies each gradient that is in
channels_last. Rules are torch.optim's; Adam's `amsgrad`, SGD's `dampening` and RMSprop's `centered`
are left to torch.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gallery_lib.kernels.runtime import cpp
from gallery_lib.kernels.runtime.launch import DOUBLE, FLOAT, LONG, POINTER, each, structure

CPP = cpp.Functions("optimizers.cpp", rows=LONG, columns=LONG, threads=LONG)
_moments = each(DOUBLE, "beta1 beta2") | each(FLOAT, "weight_decay epsilon sign keep")
OPTIONS = {
    "adam": structure(**_moments, rates=POINTER, roots=POINTER, numbers=LONG),
    "radam": structure(**_moments, rates=POINTER, rectifiers=POINTER, numbers=LONG),
    "rmsprop": structure(
        alpha=DOUBLE, **each(FLOAT, "learning_rate weight_decay epsilon momentum sign")
    ),
    "sgd": structure(**each(FLOAT, "learning_rate weight_decay momentum sign"), nesterov=LONG),
}
"""Second structure of each rule's step."""
available = CPP.available
Column = Sequence[Tensor]
"""A tensor of each row. A row is a weight with its gradient and states, all fp32, dense, and of one
layout."""


def _step(name: str, columns: Sequence[Column | None], names: Sequence[str], *options: Any) -> None:
    """Run a C++ step on weights, gradients and columns of states; the last column may be None.

    Raises:
        cpp.Refused: for a tensor that the step is not written for; nothing is changed then.
    """
    present = [column for column in columns if column is not None]
    rows = list(zip(*present, strict=True))
    counts = (len(rows), len(present), torch.get_num_threads())
    CPP.call(name, names, rows, *counts, options=OPTIONS[name](*options))
    changed = [tensor for column in (present[0], *present[2:]) for tensor in column]
    if any(map(Tensor.is_inference, changed)):  # inference tensors have no version
        changed = [tensor for tensor in changed if not tensor.is_inference()]
    torch.autograd.graph.increment_version(changed)


def adam_(
    weights: Column,
    gradients: Column,
    averages: Column,
    squares: Column,
    steps: Sequence[float],
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decoupled_weight_decay: bool,
    maximize: bool,
    rule: str = "adam",
) -> None:
    """Run one step of Adam in place, or of AdamW with `decoupled_weight_decay`.

    `steps[i]` is the number of tensor i's step, from 1. Options are torch's.
    """
    numbers: Any = FLOAT * len(steps)
    rates = numbers(*[lr / (1.0 - betas[0] ** step) for step in steps])
    roots = [math.sqrt(1.0 - betas[1] ** step) for step in steps]
    if rule == "adam":
        factors = numbers(*[1.0 / root for root in roots])
    else:
        rectified = [_rectified(betas[1], step) for step in steps]
        factors = numbers(*[r * root for r, root in zip(rectified, roots, strict=True)])
    decay, keep = (0.0, 1.0 - lr * weight_decay) if decoupled_weight_decay else (weight_decay, 1.0)
    places = ctypes.addressof(rates), ctypes.addressof(factors), len(rates)
    options = (*betas, decay, eps, -1.0 if maximize else 1.0, keep, *places)
    names = ("weights", "gradients", "averages", "squares")
    _step(rule, [weights, gradients, averages, squares], names, *options)


radam_ = functools.partial(adam_, rule="radam")
"""Run one step of RAdam in place; arguments are those of `adam_`."""


def _rectified(beta2: float, step: float) -> float:
    """Return the paper's r_t, or 0 while the variance of the adaptive rate is not known.

    Liu et al., 2020, algorithm 2.
    """
    longest = 2.0 / (1.0 - beta2) - 1.0
    length = longest - 2.0 * step * beta2**step / (1.0 - beta2**step)
    if length <= 5.0:
        return 0.0
    of_length = (length - 4) * (length - 2) * longest
    return math.sqrt(of_length / ((longest - 4) * (longest - 2) * length))


def sgd_(
    weights: Column,
    gradients: Column,
    buffers: Column | None,
    *,
    lr: float,
    weight_decay: float,
    momentum: float,
    nesterov: bool,
    maximize: bool,
) -> None:
    """Run one step of SGD in place; with momentum `buffers`, which are zeros before the first."""
    options = (lr, weight_decay, momentum, -1.0 if maximize else 1.0, nesterov)
    _step("sgd", [weights, gradients, buffers], ("weights", "gradients", "buffers"), *options)


def rmsprop_(
    weights: Column,
    gradients: Column,
    squares: Column,
    buffers: Column | None,
    *,
    lr: float,
    weight_decay: float,
    alpha: float,
    eps: float,
    momentum: float,
    maximize: bool,
) -> None:
    """Run one step of RMSprop in place; `buffers` are needed with momentum."""
    names = ("weights", "gradients", "squares", "buffers")
    options = (alpha, lr, weight_decay, eps, momentum, -1.0 if maximize else 1.0)
    _step("rmsprop", [weights, gradients, squares, buffers], names, *options)
