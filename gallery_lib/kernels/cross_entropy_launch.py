"""Launches of the cross-entropy kernels as plain data: one block for each row of the logits."""

from __future__ import annotations

import ctypes
from typing import Any

from torch import Tensor

from gallery_lib.kernels.runtime.launch import ELEMENTS, Launch

SOURCE = "cross_entropy.cu"
_SHARED = (
    ("logits", ctypes.c_void_p),
    ("row_stride", ctypes.c_longlong),
    ("classes", ctypes.c_int),
    ("labels", ctypes.c_void_p),
    ("ignored_label", ctypes.c_longlong),
    ("smoothing", ctypes.c_float),
)


class _RowArguments(ctypes.Structure):
    _fields_ = (
        *_SHARED,
        ("loss", ctypes.c_void_p),
        ("log_sum", ctypes.c_void_p),
        ("above", ctypes.c_void_p),
    )


class _GradientArguments(ctypes.Structure):
    _fields_ = (
        *_SHARED,
        ("log_sum", ctypes.c_void_p),
        ("of_loss", ctypes.c_void_p),
        ("gradient", ctypes.c_void_p),
    )


def _shared(logits: Tensor, labels: Tensor, smoothing: float, ignore_index: int) -> tuple[Any, ...]:
    return (
        logits.data_ptr(),
        logits.stride(0),
        logits.shape[1],
        labels.data_ptr(),
        ignore_index,
        smoothing,
    )


def rows_launch(
    logits: Tensor,
    labels: Tensor,
    smoothing: float,
    ignore_index: int,
    loss: Tensor,
    log_sum: Tensor,
    above: Tensor,
) -> Launch:
    """Return the launch of the forward pass.

    Rows of `logits` have no gaps inside; results are [N].
    """
    results = (loss.data_ptr(), log_sum.data_ptr(), above.data_ptr())
    arguments = _RowArguments(*_shared(logits, labels, smoothing, ignore_index), *results)
    return Launch(
        SOURCE,
        "cross_entropy_rows",
        ELEMENTS[logits.dtype],
        logits.shape[0],
        arguments,
    )


def gradient_launch(
    logits: Tensor,
    labels: Tensor,
    smoothing: float,
    ignore_index: int,
    log_sum: Tensor,
    of_loss: Tensor,
    gradient: Tensor,
) -> Launch:
    """Return the launch of the backward pass; `gradient` is contiguous [N, C]."""
    rest = (log_sum.data_ptr(), of_loss.data_ptr(), gradient.data_ptr())
    arguments = _GradientArguments(*_shared(logits, labels, smoothing, ignore_index), *rest)
    return Launch(
        SOURCE,
        "cross_entropy_gradient",
        ELEMENTS[logits.dtype],
        logits.shape[0],
        arguments,
    )
