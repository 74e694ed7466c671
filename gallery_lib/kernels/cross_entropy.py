"""Softmax cross-entropy for large vocabularies: `gallery::cross_entropy_rows`.

It equals `torch.nn.functional.cross_entropy` for class indices, with label smoothing and
`ignore_index` but without class weights. Between forward and backward it keeps one number per row
beside the logits. The same read also counts how many logits exceed the label's, which gives top-k
hits. A label outside of the classes makes its loss and gradient NaN: an error would have to wait
for the device. Where there is a C++ compiler, C++ does the work on the CPU (`cross_entropy_cpp`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gallery_lib.errors import InputError
from gallery_lib.kernels import cross_entropy_cpp
from gallery_lib.kernels.cross_entropy_launch import gradient_launch, rows_launch
from gallery_lib.kernels.cross_entropy_reference import reference_gradient, reference_rows
from gallery_lib.kernels.runtime import launch
from gallery_lib.kernels.runtime.operators import Autograd, Cpp, kernel_device, register


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

    Raises:
        InputError: for other shapes, dtypes and reductions, and for smoothing outside of 0 to 1.
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
            f"{logits.dtype} {tuple(logits.shape)} and {labels.dtype} {tuple(labels.shape)}.",
            parameter="logits",
        )
    known = reduction in ("mean", "sum", "none")
    if not known or not 0 <= label_smoothing <= 1:
        raise InputError(
            "cross_entropy takes reduction mean, sum or none and smoothing of 0 to 1; got "
            f"{reduction!r}, {label_smoothing}.",
            parameter="label_smoothing" if known else "reduction",
        )
    losses, _, above = torch.ops.gallery.cross_entropy_rows(
        logits, labels, float(label_smoothing), ignore_index
    )
    if reduction == "none":
        return losses, above
    total = losses.sum()
    return (total / (labels != ignore_index).sum() if reduction == "mean" else total), above


def _rows_kernel(
    logits: Tensor, labels: Tensor, smoothing: float, ignore_index: int
) -> tuple[Tensor, Tensor, Tensor]:
    # These names keep the copies alive until the launch.
    results, rows, labels = _results(logits), _rows_without_gaps(logits), labels.contiguous()
    launch.run(rows_launch(rows, labels, smoothing, ignore_index, *results), logits.device)
    return results


def _rows_in_cpp(
    logits: Tensor, labels: Tensor, smoothing: float, ignore_index: int
) -> tuple[Tensor, Tensor, Tensor]:
    results = _results(logits)
    tensors = (logits.contiguous(), labels.contiguous(), *results)
    cross_entropy_cpp.forward(smoothing, ignore_index, tensors)
    return results


def _results(logits: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    wide = torch.float64 if logits.dtype is torch.float64 else torch.float32
    rows = logits.shape[0]
    return (
        logits.new_empty(rows, dtype=wide),
        logits.new_empty(rows, dtype=wide),
        logits.new_empty(rows, dtype=torch.int32),
    )


def _gradient_kernel(
    logits: Tensor,
    labels: Tensor,
    smoothing: float,
    ignore_index: int,
    log_sum: Tensor,
    of_loss: Tensor,
) -> Tensor:
    # These names keep the copies alive until the launch.
    gradient, rows, labels = _gradient(logits), _rows_without_gaps(logits), labels.contiguous()
    log_sum, of_loss = log_sum.contiguous(), of_loss.contiguous()
    launch.run(
        gradient_launch(rows, labels, smoothing, ignore_index, log_sum, of_loss, gradient),
        logits.device,
    )
    return gradient


def _gradient_in_cpp(
    logits: Tensor,
    labels: Tensor,
    smoothing: float,
    ignore_index: int,
    log_sum: Tensor,
    of_loss: Tensor,
) -> Tensor:
    gradient = _gradient(logits)
    read = [tensor.contiguous() for tensor in (logits, labels, log_sum, of_loss)]
    cross_entropy_cpp.backward(smoothing, ignore_index, (*read, gradient))
    return gradient


def _gradient(logits: Tensor, *_: Any) -> Tensor:
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


register(
    "cross_entropy_rows",
    "(Tensor logits, Tensor labels, float smoothing, int ignore_index) -> (Tensor, Tensor, Tensor)",
    reference=reference_rows,
    kernel=_rows_kernel,
    device=kernel_device,
    fake=_results,
    cpp=Cpp(cross_entropy_cpp.takes, _rows_in_cpp),
    autograd=Autograd(_keep, _backward),
)
register(
    "cross_entropy_gradient",
    "(Tensor logits, Tensor labels, float smoothing, int ignore_index, Tensor log_sum, Tensor "
    "of_loss) -> Tensor",
    reference=reference_gradient,
    kernel=_gradient_kernel,
    device=kernel_device,
    fake=_gradient,
    cpp=Cpp(cross_entropy_cpp.takes, _gradient_in_cpp),
)
