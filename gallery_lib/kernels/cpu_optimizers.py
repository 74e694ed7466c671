"""Steps of Adam, AdamW, SGD, RMSprop and RAdam over many fp32 tensors on the CPU, in one pass over memory (`cpu/optimizers.cpp`).

torch computes the last two there operator by operator, each of which reads and writes whole tensors: about three times the traffic. Of the
others it has a fused form, which copies each gradient that is in channels_last first. Rules are torch.optim's; Adam's `amsgrad`, SGD's
`dampening` and RMSprop's `centered` are left to torch.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gallery_lib.kernels import cpu_library

SOURCE = "optimizers.cpp"


class _Tensors(ctypes.Structure):
    _fields_ = (
        ("count", ctypes.c_longlong),
        *((name, ctypes.c_void_p) for name in ("sizes", "weights", "gradients", "first", "second")),
        ("threads", ctypes.c_int),
    )


class _RMSprop(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_float) for name in ("learning_rate", "weight_decay", "alpha", "epsilon", "momentum", "sign"))


class _RAdam(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_float) for name in ("weight_decay", "beta1", "beta2", "epsilon", "sign", "keep")),
        *((name, ctypes.c_void_p) for name in ("rates", "rectifiers")),
    )


class _Adam(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_float) for name in ("weight_decay", "beta1", "beta2", "epsilon", "sign", "keep")),
        *((name, ctypes.c_void_p) for name in ("rates", "roots")),
    )


class _SGD(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_float) for name in ("learning_rate", "weight_decay", "momentum", "sign")),
        ("nesterov", ctypes.c_int),
    )


def available() -> bool:
    """Whether they could be built here; if not, that has been said."""
    return cpu_library.library(SOURCE) is not None


def _addresses(tensors: Sequence[Tensor]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))


def _numbers(values: Sequence[float]) -> Any:
    return (ctypes.c_float * len(values))(*values)


def _step(name: str, columns: Sequence[Sequence[Tensor] | None], options: ctypes.Structure) -> None:
    """Weights, gradients and two columns of states, which may be absent; alike in layout, row by row."""
    weights = columns[0] or ()
    sizes = (ctypes.c_longlong * len(weights))(*(weight.numel() for weight in weights))
    arrays = [sizes, *(None if column is None else _addresses(column) for column in columns)]
    addresses = [None if array is None else ctypes.addressof(array) for array in arrays]
    tensors = _Tensors(len(weights), *addresses, torch.get_num_threads())
    library = cpu_library.library(SOURCE)
    assert library is not None
    getattr(library, name)(ctypes.byref(tensors), ctypes.byref(options))
    torch.autograd.graph.increment_version([tensor for column in (columns[0], *columns[2:]) if column is not None for tensor in column])


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
    """One step in place, number `steps[i]` (from 1) of tensor i: AdamW's with `decoupled_weight_decay`. Rows as in `rmsprop_`."""
    rates = _numbers([lr / (1.0 - betas[0] ** step) for step in steps])
    roots = _numbers([1.0 / math.sqrt(1.0 - betas[1] ** step) for step in steps])
    decay, keep = (0.0, 1.0 - lr * weight_decay) if decoupled_weight_decay else (weight_decay, 1.0)
    places = ctypes.addressof(rates), ctypes.addressof(roots)
    _step("adam", [weights, gradients, averages, squares], _Adam(decay, *betas, eps, -1.0 if maximize else 1.0, keep, *places))


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
    """One step in place; `buffers`: with momentum, zeros before the first. Rows as in `rmsprop_`."""
    options = _SGD(lr, weight_decay, momentum, -1.0 if maximize else 1.0, nesterov)
    _step("sgd", [weights, gradients, buffers, None], options)


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
    """One step in place. Rows (a weight, its gradient and states) are fp32, dense, and have one layout; `buffers`: with momentum."""
    options = _RMSprop(lr, weight_decay, alpha, eps, momentum, -1.0 if maximize else 1.0)
    _step("rmsprop", [weights, gradients, squares, buffers], options)


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
    """One step in place, number `steps[i]` (from 1) of tensor i. Rows as in `rmsprop_`."""
    rectified = [_rectified(betas[1], step) for step in steps]
    rates = _numbers([lr / (1.0 - betas[0] ** step) for step in steps])
    rectifiers = _numbers([each * math.sqrt(1.0 - betas[1] ** step) for each, step in zip(rectified, steps, strict=True)])
    decay, keep = (0.0, 1.0 - lr * weight_decay) if decoupled_weight_decay else (weight_decay, 1.0)
    places = ctypes.addressof(rates), ctypes.addressof(rectifiers)
    _step("radam", [weights, gradients, averages, squares], _RAdam(decay, *betas, eps, -1.0 if maximize else 1.0, keep, *places))


def _rectified(beta2: float, step: float) -> float:
    """The paper's r_t, or 0 while the variance of the adaptive rate is not known (Liu et al., 2020, algorithm 2)."""
    longest = 2.0 / (1.0 - beta2) - 1.0
    length = longest - 2.0 * step * beta2**step / (1.0 - beta2**step)
    if length <= 5.0:
        return 0.0
    return math.sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length))
