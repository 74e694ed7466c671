"""Steps of Adam, AdamW, SGD, RMSprop and RAdam over many fp32 tensors on the CPU.

`cpu/optimizers.cpp` goes over memory once. On the CPU, torch computes RMSprop and RAdam operator by
operator. Each operator reads and writes whole tensors, so the traffic is about three times as much.
For the other rules torch has a fused form, which first copies each gradient that is in
channels_last. Rules are torch.optim's; Adam's `amsgrad`, SGD's `dampening` and RMSprop's `centered`
are left to torch.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from gallery_lib.kernels.runtime import cpu_library, cpu_tensors

SOURCE = "optimizers.cpp"
_ADAM_COLUMNS = ("weights", "gradients", "averages", "squares")


class _Tensors(ctypes.Structure):
    _fields_ = (
        ("descriptors", ctypes.c_void_p),
        *((name, ctypes.c_longlong) for name in ("length", "rows", "columns", "threads")),
    )


def _floats(*names: str) -> tuple[tuple[str, Any], ...]:
    return tuple((name, ctypes.c_float) for name in names)


class _RMSprop(ctypes.Structure):
    _fields_ = (
        ("alpha", ctypes.c_double),
        *_floats("learning_rate", "weight_decay", "epsilon", "momentum", "sign"),
    )


_MOMENTS = (
    ("beta1", ctypes.c_double),
    ("beta2", ctypes.c_double),
    *_floats("weight_decay", "epsilon", "sign", "keep"),
)


class _RAdam(ctypes.Structure):
    _fields_ = (
        *_MOMENTS,
        ("rates", ctypes.c_void_p),
        ("rectifiers", ctypes.c_void_p),
        ("numbers", ctypes.c_longlong),
    )


class _Adam(ctypes.Structure):
    _fields_ = (
        *_MOMENTS,
        ("rates", ctypes.c_void_p),
        ("roots", ctypes.c_void_p),
        ("numbers", ctypes.c_longlong),
    )


class _SGD(ctypes.Structure):
    _fields_ = (
        *_floats("learning_rate", "weight_decay", "momentum", "sign"),
        ("nesterov", ctypes.c_longlong),
    )


def available() -> bool:
    """Return whether the C++ steps could be built here; if not, a warning has said so."""
    return cpu_library.library(SOURCE) is not None


def _numbers(values: Sequence[float]) -> Any:
    return (ctypes.c_float * len(values))(*values)


def _step(
    name: str,
    columns: Sequence[Sequence[Tensor] | None],
    names: Sequence[str],
    options: ctypes.Structure,
) -> None:
    """Run a C++ step on weights, gradients and columns of states; the last column may be None.

    Raises:
        cpu_tensors.Refused: for a tensor that the step is not written for; nothing is changed then.
    """
    present = [column for column in columns if column is not None]
    rows = list(zip(*present, strict=True))
    descriptors = cpu_tensors.described(list(chain.from_iterable(rows)))
    address, length = descriptors.buffer_info()
    tensors = _Tensors(address, length, len(rows), len(present), torch.get_num_threads())
    library = cpu_library.library(SOURCE)
    assert library is not None
    code = cpu_tensors.entry(library, name)(ctypes.byref(tensors), ctypes.byref(options))
    cpu_tensors.check(code, f"{name}'s step", rows, names)
    changed = [tensor for column in (present[0], *present[2:]) for tensor in column]
    if any(map(Tensor.is_inference, changed)):  # inference tensors have no version
        changed = [tensor for tensor in changed if not tensor.is_inference()]
    torch.autograd.graph.increment_version(changed)


def adam_(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    averages: Sequence[Tensor],
    squares: Sequence[Tensor],
    steps: Sequence[float],
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decoupled_weight_decay: bool,
    maximize: bool,
) -> None:
    """Run one step of Adam in place, or of AdamW with `decoupled_weight_decay`.

    `steps[i]` is the number of tensor i's step, from 1. Rows are as in `rmsprop_`.
    """
    rates = _numbers([lr / (1.0 - betas[0] ** step) for step in steps])
    roots = _numbers([1.0 / math.sqrt(1.0 - betas[1] ** step) for step in steps])
    decay, keep = (0.0, 1.0 - lr * weight_decay) if decoupled_weight_decay else (weight_decay, 1.0)
    places = ctypes.addressof(rates), ctypes.addressof(roots), len(rates)
    options = _Adam(*betas, decay, eps, -1.0 if maximize else 1.0, keep, *places)
    _step("adam", [weights, gradients, averages, squares], _ADAM_COLUMNS, options)


def sgd_(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    buffers: Sequence[Tensor] | None,
    *,
    lr: float,
    weight_decay: float,
    momentum: float,
    nesterov: bool,
    maximize: bool,
) -> None:
    """Run one step of SGD in place.

    `buffers` are needed with momentum, and are zeros before the first step. Rows are as in
    `rmsprop_`.
    """
    options = _SGD(lr, weight_decay, momentum, -1.0 if maximize else 1.0, nesterov)
    _step("sgd", [weights, gradients, buffers], ("weights", "gradients", "buffers"), options)


def rmsprop_(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    squares: Sequence[Tensor],
    buffers: Sequence[Tensor] | None,
    *,
    lr: float,
    weight_decay: float,
    alpha: float,
    eps: float,
    momentum: float,
    maximize: bool,
) -> None:
    """Run one step of RMSprop in place.

    A row is a weight with its gradient and states. All of a row are fp32, dense, and of one layout.
    `buffers` are needed with momentum.
    """
    options = _RMSprop(alpha, lr, weight_decay, eps, momentum, -1.0 if maximize else 1.0)
    names = ("weights", "gradients", "squares", "buffers")
    _step("rmsprop", [weights, gradients, squares, buffers], names, options)


def radam_(
    weights: Sequence[Tensor],
    gradients: Sequence[Tensor],
    averages: Sequence[Tensor],
    squares: Sequence[Tensor],
    steps: Sequence[float],
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decoupled_weight_decay: bool,
    maximize: bool,
) -> None:
    """Run one step of RAdam in place.

    `steps[i]` is the number of tensor i's step, from 1. Rows are as in `rmsprop_`.
    """
    rectified = [_rectified(betas[1], step) for step in steps]
    rates = _numbers([lr / (1.0 - betas[0] ** step) for step in steps])
    rectifiers = _numbers(
        [
            factor * math.sqrt(1.0 - betas[1] ** step)
            for factor, step in zip(rectified, steps, strict=True)
        ]
    )
    decay, keep = (0.0, 1.0 - lr * weight_decay) if decoupled_weight_decay else (weight_decay, 1.0)
    places = ctypes.addressof(rates), ctypes.addressof(rectifiers), len(rates)
    options = _RAdam(*betas, decay, eps, -1.0 if maximize else 1.0, keep, *places)
    _step("radam", [weights, gradients, averages, squares], _ADAM_COLUMNS, options)


def _rectified(beta2: float, step: float) -> float:
    """Return the paper's r_t, or 0 while the variance of the adaptive rate is not known.

    Liu et al., 2020, algorithm 2.
    """
    longest = 2.0 / (1.0 - beta2) - 1.0
    length = longest - 2.0 * step * beta2**step / (1.0 - beta2**step)
    if length <= 5.0:
        return 0.0
    return math.sqrt(
        (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
    )
