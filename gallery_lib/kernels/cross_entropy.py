"""Softmax cross-entropy for large vocabularies: `gallery::cross_entropy_rows`.

It equals `torch.nn.functional.cross_entropy` for class indices, with label smoothing and
`ignore_index` but without class weights. Between forward and backward it keeps one number per row
beside the logits. The same read also counts how many logits exceed the label's, which gives top-k
hits. A label outside of the classes makes its loss and gradient NaN: an error would have to wait
for the device.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from gallery_lib.errors import InputError
from gallery_lib.kernels.gradient_statistics import ELEMENTS
from gallery_lib.kernels.runtime import call_counts, fallback, launch
from gallery_lib.kernels.runtime.launch import Launch

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
        (("ELEMENT", ELEMENTS[logits.dtype]),),
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
        (("ELEMENT", ELEMENTS[logits.dtype]),),
        logits.shape[0],
        arguments,
    )


def _wide(logits: Tensor) -> Tensor:
    return logits if logits.dtype is torch.float64 else logits.float()


def reference_rows(
    logits: Tensor, labels: Tensor, smoothing: float, ignore_index: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (loss, log-sum-exp, number of logits above the label's) [N].

    Computed in plain torch.
    """
    x, ignored = _wide(logits), labels == ignore_index
    known = (labels >= 0) & (labels < x.shape[1])
    own = (
        x.gather(1, labels.where(known, 0)[:, None])[:, 0].where(known, torch.nan)
        if x.shape[1]
        else x.new_full(labels.shape, torch.nan)
    )
    log_sum = torch.logsumexp(x, 1)
    log_sum = log_sum.where(log_sum != torch.inf, torch.nan)
    loss = log_sum - own
    if smoothing:
        loss = (1 - smoothing) * loss + smoothing * (log_sum - x.sum(1) / x.shape[1])
    above = (x > own[:, None]).sum(1, dtype=torch.int32)
    return (
        loss.masked_fill(ignored, 0),
        log_sum.masked_fill(ignored, 0),
        above.masked_fill(ignored, -1),
    )


def reference_gradient(
    logits: Tensor,
    labels: Tensor,
    smoothing: float,
    ignore_index: int,
    log_sum: Tensor,
    of_loss: Tensor,
) -> Tensor:
    """Return the gradient of the logits, [N, C] in their dtype, in plain torch."""
    x, classes = _wide(logits), logits.shape[1]
    known = (labels >= 0) & (labels < classes)
    difference = (x - log_sum[:, None]).exp() - smoothing / max(classes, 1)
    difference = difference - (1 - smoothing) * (
        torch.arange(classes, device=x.device) == labels[:, None]
    ).to(x.dtype)
    gradient = of_loss.where(known, torch.nan)[:, None] * difference
    return gradient.masked_fill((labels == ignore_index)[:, None], 0).to(logits.dtype).contiguous()


torch.library.define(
    "gallery::cross_entropy_rows",
    "(Tensor logits, Tensor labels, float smoothing, int ignore_index) -> (Tensor, Tensor, Tensor)",
)
torch.library.define(
    "gallery::cross_entropy_gradient",
    "(Tensor logits, Tensor labels, float smoothing, int ignore_index, Tensor log_sum, Tensor "
    "of_loss) -> Tensor",
)


def _rows_on_cpu(
    logits: Tensor, labels: Tensor, smoothing: float, ignore_index: int
) -> tuple[Tensor, Tensor, Tensor]:
    call_counts.ran("cross_entropy_rows", call_counts.PLAIN_TORCH)
    return reference_rows(logits, labels, smoothing, ignore_index)


torch.library.impl("gallery::cross_entropy_rows", "cpu", _rows_on_cpu)


def _rows_on_cuda(
    logits: Tensor, labels: Tensor, smoothing: float, ignore_index: int
) -> tuple[Tensor, Tensor, Tensor]:
    if logits.dtype not in ELEMENTS or not fallback.kernels_run(logits.device):
        return _rows_on_cpu(logits, labels, smoothing, ignore_index)
    call_counts.ran("cross_entropy_rows", call_counts.KERNEL)
    # These names keep the copies alive until the launch.
    results, rows, labels = (
        _results(logits),
        _rows_without_gaps(logits),
        labels.contiguous(),
    )
    launch.run(rows_launch(rows, labels, smoothing, ignore_index, *results), logits.device)
    return results


torch.library.impl("gallery::cross_entropy_rows", "cuda", _rows_on_cuda)


@torch.library.register_fake("gallery::cross_entropy_rows")
def _results(logits: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    wide = torch.float64 if logits.dtype is torch.float64 else torch.float32
    rows = logits.shape[0]
    return (
        logits.new_empty(rows, dtype=wide),
        logits.new_empty(rows, dtype=wide),
        logits.new_empty(rows, dtype=torch.int32),
    )


def _gradient_on_cpu(
    logits: Tensor,
    labels: Tensor,
    smoothing: float,
    ignore_index: int,
    log_sum: Tensor,
    of_loss: Tensor,
) -> Tensor:
    call_counts.ran("cross_entropy_gradient", call_counts.PLAIN_TORCH)
    return reference_gradient(logits, labels, smoothing, ignore_index, log_sum, of_loss)


torch.library.impl("gallery::cross_entropy_gradient", "cpu", _gradient_on_cpu)


def _gradient_on_cuda(
    logits: Tensor,
    labels: Tensor,
    smoothing: float,
    ignore_index: int,
    log_sum: Tensor,
    of_loss: Tensor,
) -> Tensor:
    if logits.dtype not in ELEMENTS or not fallback.kernels_run(logits.device):
        return _gradient_on_cpu(logits, labels, smoothing, ignore_index, log_sum, of_loss)
    call_counts.ran("cross_entropy_gradient", call_counts.KERNEL)
    # These names keep the copies alive until the launch.
    gradient, rows, labels = (
        _gradient_fake(logits),
        _rows_without_gaps(logits),
        labels.contiguous(),
    )
    log_sum, of_loss = log_sum.contiguous(), of_loss.contiguous()
    launch.run(
        gradient_launch(rows, labels, smoothing, ignore_index, log_sum, of_loss, gradient),
        logits.device,
    )
    return gradient


torch.library.impl("gallery::cross_entropy_gradient", "cuda", _gradient_on_cuda)


@torch.library.register_fake("gallery::cross_entropy_gradient")
def _gradient_fake(logits: Tensor, *_: Any) -> Tensor:
    return torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)


def _rows_without_gaps(logits: Tensor) -> Tensor:
    return logits if logits.shape[1] <= 1 or logits.stride(1) == 1 else logits.contiguous()


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    logits, labels, ctx.smoothing, ctx.ignore_index = inputs
    ctx.mark_non_differentiable(output[1], output[2])
    ctx.save_for_backward(logits, labels, output[1])


def _backward(ctx: Any, of_loss: Tensor, *_: Any) -> tuple[Tensor, None, None, None]:
    logits, labels, log_sum = ctx.saved_tensors
    gradient = torch.ops.gallery.cross_entropy_gradient(
        logits, labels, ctx.smoothing, ctx.ignore_index, log_sum, of_loss
    )
    return gradient, None, None, None


torch.library.register_autograd("gallery::cross_entropy_rows", _backward, setup_context=_keep)


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """Return the loss in fp32 (fp64 for fp64 logits): a scalar, or [N] with `reduction="none"`.

    Raises InputError for other shapes, dtypes and reductions, and for smoothing outside of 0 to 1.

    Args:
        logits: [N, C], floating point.
        labels: int64 [N].
        ignore_index: label of the rows that are ignored.
        label_smoothing: 0 to 1, as in `torch.nn.functional.cross_entropy`.
        reduction: `mean` (over rows that are not ignored), `sum` or `none`.
    """
    return with_ranks(
        logits,
        labels,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
    )[0]


def with_ranks(
    logits: Tensor,
    labels: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> tuple[Tensor, Tensor]:
    """Return the loss as `cross_entropy` does, and each label's rank, int32 [N].

    A rank of k - 1 or less is a top-k hit; -1 stands for an ignored row. The rank counts the logits
    that are greater, so a tie is a hit.
    """
    if (
        logits.dim() != 2
        or labels.shape != logits.shape[:1]
        or not logits.is_floating_point()
        or labels.dtype is not torch.int64
    ):
        raise InputError(
            "cross_entropy takes floating-point logits [N, C] and int64 labels [N]; got "
            f"{logits.dtype} {tuple(logits.shape)} and {labels.dtype} {tuple(labels.shape)}."
        )
    if reduction not in ("mean", "sum", "none") or not 0 <= label_smoothing <= 1:
        raise InputError(
            "cross_entropy takes reduction mean, sum or none and smoothing of 0 to 1; got "
            f"{reduction!r}, {label_smoothing}."
        )
    losses, _, above = torch.ops.gallery.cross_entropy_rows(
        logits, labels, float(label_smoothing), ignore_index
    )
    if reduction == "none":
        return losses, above
    total = losses.sum()
    return (total / (labels != ignore_index).sum() if reduction == "mean" else total), above
