"""Softmax cross-entropy for large vocabularies: `gallery::cross_entropy_rows`.

It equals `torch.nn.functional.cross_entropy` for class indices, with label smoothing and
`ignore_index` but without class weights. Between forward and backward it keeps one number per row
beside the logits. A label outside of the classes makes its loss and gradient NaN: an error would
have to wait for the device.

Arithmetic is in fp32, or in fp64 for fp64 logits. On CUDA one block works on each row. Where there
is a C++ compiler, C++ (`cpu/cross_entropy.cpp`) does the work on the CPU for fp32 and bf16 logits,
with sums in fp64. Its threads are OpenMP's, and their number changes no bit of a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gallery_lib.kernels.runtime import cpp
from gallery_lib.kernels.runtime.launch import DOUBLE, FLOAT, INT, LONG, POINTER, enqueue, structure
from gallery_lib.kernels.runtime.operators import Autograd, kernel_device, register

_SOURCE = "cross_entropy.cu"
_CPP = cpp.Functions(
    "cross_entropy.cpp", "-fopenmp", ignored_label=LONG, smoothing=DOUBLE, threads=LONG
)
_SHARED: dict[str, type] = {
    **{"logits": POINTER, "row_stride": LONG, "classes": INT},
    **{"labels": POINTER, "ignored_label": LONG, "smoothing": FLOAT},
}
_Rows = structure(**_SHARED, loss=POINTER, log_sum=POINTER)
_Gradient = structure(**_SHARED, log_sum=POINTER, of_loss=POINTER, stride=LONG, gradient=POINTER)
available = _CPP.available


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """Return the loss in fp32 (fp64 for fp64 logits): a scalar, or [N] with `reduction="none"`.

    Args:
        logits: [N, C], floating point.
        labels: int64 [N].
        ignore_index: label of the rows that are ignored.
        label_smoothing: 0 to 1, as in `torch.nn.functional.cross_entropy`.
        reduction: `mean` (over rows that are not ignored), `sum` or `none`.
    """
    assert logits.dim() == 2 and labels.shape == logits.shape[:1] and logits.is_floating_point()
    assert labels.dtype is torch.int64 and 0 <= label_smoothing <= 1
    assert reduction in ("mean", "sum", "none")
    losses, _ = torch.ops.gallery.cross_entropy_rows(
        logits, labels, float(label_smoothing), ignore_index
    )
    if reduction == "none":
        return losses
    total = losses.sum()
    return total / (labels != ignore_index).sum() if reduction == "mean" else total


def takes_cpp(logits: Tensor, labels: Tensor, *_: Any) -> bool:
    """Return whether the C++ does the work for these logits."""
    return (
        logits.dtype in (torch.float32, torch.bfloat16)
        and logits.numel() > 0
        and labels.dtype is torch.int64
        and available()
    )


def _shared(logits: Tensor, labels: Tensor, smoothing: float, ignore_index: int) -> tuple[Any, ...]:
    return logits, logits.stride(0), logits.shape[1], labels, ignore_index, smoothing


def _rows_without_gaps(logits: Tensor) -> Tensor:
    return logits if logits.shape[1] <= 1 or logits.stride(1) == 1 else logits.contiguous()


def _wide(logits: Tensor) -> Tensor:
    return logits if logits.dtype is torch.float64 else logits.float()


def _rows_reference(
    logits: Tensor, labels: Tensor, smoothing: float, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """Return (loss, log-sum-exp) [N]."""
    x, ignored = _wide(logits), labels == ignore_index
    known = (labels >= 0) & (labels < x.shape[1])
    own = x.new_full(labels.shape, torch.nan)
    if x.shape[1]:
        own = x.gather(1, labels.where(known, 0)[:, None])[:, 0].where(known, torch.nan)
    log_sum = torch.logsumexp(x, 1)
    log_sum = log_sum.where(log_sum != torch.inf, torch.nan)
    loss = log_sum - own
    if smoothing:
        loss = (1 - smoothing) * loss + smoothing * (log_sum - x.sum(1) / x.shape[1])
    return loss.masked_fill(ignored, 0), log_sum.masked_fill(ignored, 0)


def _rows_kernel(
    logits: Tensor, labels: Tensor, smoothing: float, ignore_index: int
) -> tuple[Tensor, Tensor]:
    # These names keep the copies alive until the launch.
    results, rows, labels = _results(logits), _rows_without_gaps(logits), labels.contiguous()
    values = (*_shared(rows, labels, smoothing, ignore_index), *results)
    enqueue(_SOURCE, "cross_entropy_rows", logits, logits.shape[0], _Rows, *values)
    return results


def _rows_cpp(
    logits: Tensor, labels: Tensor, smoothing: float, ignore_index: int
) -> tuple[Tensor, Tensor]:
    results = _results(logits)
    tensors = (logits.contiguous(), labels.contiguous(), *results)
    call_cpp("forward", smoothing, ignore_index, tensors)
    return results


def call_cpp(function: str, smoothing: float, ignore_index: int, tensors: Sequence[Tensor]) -> None:
    """Write the results of a pass, of logits [N, C] without gaps and labels int64 [N].

    The other tensors are, for `forward`, loss and log_sum, which are written; for `backward`
    log_sum, of_loss and the gradient, which is written. They are fp32 [N], the gradient like the
    logits.

    Raises:
        cpp.Refused: for tensors that do not fit together; nothing is changed then.
    """
    rest = ("loss", "log_sum") if function == "forward" else ("log_sum", "of_loss", "gradient")
    values = (ignore_index, smoothing, torch.get_num_threads())
    _CPP.call(f"cross_entropy_{function}", ("logits", "labels", *rest), [tensors], *values)


def _results(logits: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    wide = torch.float64 if logits.dtype is torch.float64 else torch.float32
    rows = logits.shape[0]
    return logits.new_empty(rows, dtype=wide), logits.new_empty(rows, dtype=wide)


def _gradient_reference(
    logits: Tensor, labels: Tensor, smoothing: float, ignore_index: int, *rest: Tensor
) -> Tensor:
    log_sum, of_loss = rest
    x, classes = _wide(logits), logits.shape[1]
    known = (labels >= 0) & (labels < classes)
    difference = (x - log_sum[:, None]).exp() - smoothing / max(classes, 1)
    difference = difference - (1 - smoothing) * (
        torch.arange(classes, device=x.device) == labels[:, None]
    ).to(x.dtype)
    gradient = of_loss.where(known, torch.nan)[:, None] * difference
    return gradient.masked_fill((labels == ignore_index)[:, None], 0).to(logits.dtype).contiguous()


def _gradient_kernel(
    logits: Tensor, labels: Tensor, smoothing: float, ignore_index: int, *rest: Tensor
) -> Tensor:
    # These names keep the copies alive until the launch.
    gradient, rows, labels = _new_gradient(logits), _rows_without_gaps(logits), labels.contiguous()
    rest = rest[0].contiguous(), rest[1]  # all rows may share the memory of one gradient
    values = (*_shared(rows, labels, smoothing, ignore_index), *rest, rest[1].stride(0), gradient)
    enqueue(_SOURCE, "cross_entropy_gradient", logits, logits.shape[0], _Gradient, *values)
    return gradient


def _gradient_cpp(
    logits: Tensor, labels: Tensor, smoothing: float, ignore_index: int, *rest: Tensor
) -> Tensor:
    gradient = _new_gradient(logits)
    read = [tensor.contiguous() for tensor in (logits, labels, *rest)]
    call_cpp("backward", smoothing, ignore_index, (*read, gradient))
    return gradient


def _new_gradient(logits: Tensor, *_: Any) -> Tensor:
    return torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    logits, labels, ctx.smoothing, ctx.ignore_index = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(logits, labels, output[1])


def _backward(ctx: Any, of_loss: Tensor, _: Any) -> tuple[Tensor, None, None, None]:
    logits, labels, log_sum = ctx.saved_tensors
    gradient = torch.ops.gallery.cross_entropy_gradient(
        logits, labels, ctx.smoothing, ctx.ignore_index, log_sum, of_loss
    )
    return gradient, None, None, None


register(
    "cross_entropy_rows",
    "(Tensor logits, Tensor labels, float smoothing, int ignore_index) -> (Tensor, Tensor)",
    reference=_rows_reference,
    kernel=_rows_kernel,
    device=kernel_device,
    fake=_results,
    cpp=_rows_cpp,
    takes_cpp=takes_cpp,
    autograd=Autograd(_keep, _backward),
)
register(
    "cross_entropy_gradient",
    "(Tensor logits, Tensor labels, float smoothing, int ignore_index, Tensor log_sum, Tensor "
    "of_loss) -> Tensor",
    reference=_gradient_reference,
    kernel=_gradient_kernel,
    device=kernel_device,
    fake=_new_gradient,
    cpp=_gradient_cpp,
    takes_cpp=takes_cpp,
)
