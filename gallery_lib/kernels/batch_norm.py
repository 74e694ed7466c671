"""Batch normalisation, addition of a residual and ReLU in training: `gallery::batch_norm_relu`.

Tensors are in channels_last. Forward reads the input twice and the residual once, and writes once.
For backward it keeps its input and (with a residual) its result, which neighbouring layers keep
anyway. Statistics and sums are in fp32 by Welford's method, merged in fp64 in a fixed order.

- Forward: statistics of the batch (`batch_norm_statistics`), then `batch_norm_relu`.
- Backward: `batch_norm_relu_sums`, then `batch_norm_relu_gradient`.
- `batch_norm_relu_sums_of_two` is `batch_norm_relu_sums` of a gradient in two parts. A result that
  two layers read has two gradients. Added up first, their sum is written and read once more. The
  compiler's graph pass `compiler.passes.large_batch_norms` calls it, on CPUs.

`mean` [C] and `inverse_deviation` [C], which is 1 / √(variance + eps), normalise each channel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gallery_lib.errors import InputError
from gallery_lib.kernels.batch_norm_statistics import (
    OVER,
    TILE,
    Shape,
    arithmetic,
    call_cpp,
    in_channels_last,
    new_pair,
    rows_of,
    slabs_of,
    suits_cpp,
)
from gallery_lib.kernels.runtime.launch import INT, POINTER, each, enqueue, filled, structure
from gallery_lib.kernels.runtime.operators import Autograd, Cpp, kernel_device, register

_BACKWARD_SOURCE = "batch_norm_backward.cu"


_Channels = structure(**each(POINTER, "mean inverse_deviation weight bias"))


def batch_norm_relu(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    batches: Tensor | None = None,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Return relu(batch_norm(x) + residual) with this batch's statistics, in channels_last.

    The normalisation is that of `torch.nn.BatchNorm2d` in training. Tensors [C] are fp32 (fp64 for
    fp64 x).

    Args:
        x: [N, C, H, W] in fp32, bf16, fp16 or fp64.
        running_mean: [C], updated in place, or None.
        running_var: [C], updated in place; None exactly where `running_mean` is None.
        weight: [C] or None.
        bias: [C] or None.
        residual: shape and dtype of x, or None.
        batches: int64 scalar, counted up by one, or None.
        momentum: the batch's share of the running statistics; None means 1 / batches.
        eps: added to the variance.

    Raises:
        InputError: when the arguments do not fit together.
    """
    _check(
        x, residual, running_mean=running_mean, running_var=running_var, weight=weight, bias=bias
    )
    operators = torch.ops.gallery
    statistics = operators.batch_norm_statistics_(
        x.detach(), running_mean, running_var, batches, momentum, eps
    )
    return operators.batch_norm_relu(x, residual, *statistics, weight, bias)


def _check(x: Tensor, residual: Tensor | None, **channels: Tensor | None) -> None:
    """Raise InputError unless residual and values of channels fit x."""
    wide = arithmetic(x)

    def fits(tensor: Tensor | None, shape: Any, dtype: torch.dtype) -> bool:
        return tensor is None or (tensor.shape == shape and tensor.dtype is dtype)

    both = (channels["running_mean"] is None) == (channels["running_var"] is None)
    for name, tensor, taken, right in (
        ("x", x, "floating-point [N, C, H, W]", x.dim() == 4 and x.is_floating_point()),
        ("residual", residual, "one like x", fits(residual, x.shape, x.dtype)),
        *((n, t, f"{wide} [C]", fits(t, x.shape[1:2], wide)) for n, t in channels.items()),
        ("running_mean", channels["running_mean"], "it and running_var, or neither", both),
    ):
        if not right:
            form = "None" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"
            raise InputError(
                f"batch_norm_relu takes {taken} as {name}; got {form}.", parameter=name
            )


def _new_like(x: Tensor) -> Tensor:
    """Return a new tensor of x's shape and dtype, in channels_last."""
    return torch.empty(x.shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


def _channels_last_or_none(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else in_channels_last(tensor)


def _without_gaps(*values: Tensor | None) -> list[Any]:
    return [None if value is None else value.contiguous() for value in values]


def _column(values: Tensor) -> Tensor:
    return values[:, None, None]


def _scale(inverse_deviation: Tensor, weight: Tensor | None) -> Tensor:
    return inverse_deviation if weight is None else inverse_deviation * weight


_Relu = structure(shape=Shape, x=POINTER, residual=POINTER, channels=_Channels, result=POINTER)


def _relu_reference(x: Tensor, residual: Tensor | None, *channels: Any) -> Tensor:
    """Return relu((x − mean) · inverse deviation · weight + bias + residual), in x's dtype."""
    mean, inverse_deviation, weight, bias = channels
    value = (x - _column(mean)) * _column(_scale(inverse_deviation, weight))
    if bias is not None:
        value = value + _column(bias)
    if residual is not None:
        value = value + residual
    return in_channels_last(value.relu().to(x.dtype))


def _relu_kernel(x: Tensor, residual: Tensor | None, *channels: Tensor | None) -> Tensor:
    # These names keep the copies alive until the launch.
    x, residual = in_channels_last(x), _channels_last_or_none(residual)
    c, result = _without_gaps(*channels), _new_like(x)
    slabs = slabs_of(x, residual, result)
    values = (slabs.shape, x, residual, filled(_Channels, *c), result)
    enqueue("batch_norm.cu", "batch_norm_relu", x, slabs.blocks, _Relu, *values)
    return result


def _relu_cpp(x: Tensor, residual: Tensor | None, *channels: Tensor | None) -> Tensor:
    result, beside = _new_like(x), _channels_last_or_none(residual)
    call_cpp("forward", in_channels_last(x), None, None, None, beside, result, *channels)
    return result


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, residual, *channels = inputs
    ctx.save_for_backward(x, None if residual is None else output, *channels)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """Return the inputs' gradients; that of x includes what goes through mean and deviation."""
    x, result, *channels = ctx.saved_tensors
    of_weight, of_bias, masked = torch.ops.gallery.batch_norm_relu_sums(
        gradient, x, result, *channels
    )
    passed, is_masked = (gradient, False) if result is None else (masked, True)
    of_x = None
    if ctx.needs_input_grad[0]:
        of_x = torch.ops.gallery.batch_norm_relu_gradient(
            passed, is_masked, x, *channels, of_weight, of_bias
        )
    weight, bias = channels[2:]
    return (
        of_x,
        None if result is None else masked,
        None,
        None,
        None if weight is None else of_weight,
        None if bias is None else of_bias,
    )


register(
    "batch_norm_relu",
    "(Tensor x, Tensor? residual, Tensor mean, Tensor inverse_deviation, Tensor? weight, "
    "Tensor? bias) -> Tensor",
    reference=_relu_reference,
    kernel=_relu_kernel,
    device=kernel_device,
    fake=lambda x, *_: _new_like(x),
    cpp=Cpp(lambda x, residual, *channels: suits_cpp(x, (residual,), channels), _relu_cpp),
    autograd=Autograd(_keep, _backward),
)

_Sums = structure(
    shape=Shape,
    **each(POINTER, "gradient x result"),
    channels=_Channels,
    **each(POINTER, "masked products gradients"),
)
_Totals = structure(
    **each(POINTER, "products gradients inverse_deviation"),
    **each(INT, "slabs channels"),
    **each(POINTER, "of_weight of_bias"),
)


def _sums_reference(
    gradient: Tensor, x: Tensor, result: Tensor | None, *channels: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of weight and bias [C], and the gradient behind ReLU.

    The last one is in channels_last, and empty without `result`, which is what the forward pass
    returned. When `result` is None, it is computed again, which is right only without a residual.
    """
    mean, inverse_deviation, *_ = channels
    masked = _masked(gradient, x, result, *channels)
    wide = masked.to(arithmetic(x))
    of_weight = (wide * (x - _column(mean))).sum(OVER) * inverse_deviation
    return of_weight, wide.sum(OVER), x.new_empty(0) if result is None else masked


def _masked(gradient: Tensor, x: Tensor, result: Tensor | None, *channels: Any) -> Tensor:
    blocked = (_relu_reference(x, None, *channels) if result is None else result) <= 0
    return in_channels_last(gradient.masked_fill(blocked, 0))


def _sums_kernel(
    gradient: Tensor, x: Tensor, result: Tensor | None, *channels: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    gradient, x = in_channels_last(gradient), in_channels_last(x)
    result = _channels_last_or_none(result)
    c = _without_gaps(*channels)
    of_weight, of_bias, masked = _sums_fake(gradient, x, result)
    slabs = slabs_of(x, gradient, result, None if result is None else masked)
    parts = new_pair(x, slabs.count)
    values = (slabs.shape, gradient, x, result, filled(_Channels, *c), masked, *parts)
    enqueue(_BACKWARD_SOURCE, "batch_norm_sums", x, slabs.blocks, _Sums, *values)
    totals = (*parts, c[1], *parts[0].shape, of_weight, of_bias)
    blocks = -(-x.shape[1] // TILE)
    enqueue(_BACKWARD_SOURCE, "batch_norm_totals", parts[0], blocks, _Totals, *totals)
    return of_weight, of_bias, masked


def _sums_of_parts_cpp(
    gradient: Tensor,
    more: Tensor | None,
    x: Tensor,
    result: Tensor | None,
    *channels: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    of_weight, of_bias, masked = _sums_fake(gradient, x, result)
    batches = [_channels_last_or_none(each) for each in (x, gradient, more, result)]
    written = None if result is None else masked
    call_cpp("sums", *batches, None, written, *channels, of_weight, of_bias)
    return of_weight, of_bias, masked


def _sums_fake(
    gradient: Tensor, x: Tensor, result: Tensor | None, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return *new_pair(x), x.new_empty(0) if result is None else _new_like(x)


register(
    "batch_norm_relu_sums",
    "(Tensor gradient, Tensor x, Tensor? result, Tensor mean, Tensor inverse_deviation, "
    "Tensor? weight, Tensor? bias) -> (Tensor, Tensor, Tensor)",
    reference=_sums_reference,
    kernel=_sums_kernel,
    device=lambda gradient, x, *_: kernel_device(x),
    fake=_sums_fake,
    cpp=Cpp(
        lambda gradient, x, result, *channels: suits_cpp(x, (gradient, result), channels),
        lambda gradient, *rest: _sums_of_parts_cpp(gradient, None, *rest),
    ),
)


def _added_first(first: Tensor, second: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ops.gallery.batch_norm_relu_sums(first + second, *rest)


register(
    "batch_norm_relu_sums_of_two",
    "(Tensor first, Tensor second, Tensor x, Tensor result, Tensor mean, "
    "Tensor inverse_deviation, Tensor? weight, Tensor? bias) -> (Tensor, Tensor, Tensor)",
    reference=_added_first,
    kernel=_added_first,
    device=lambda first, *_: None,
    fake=lambda first, second, *rest: _sums_fake(first, *rest),
    cpp=Cpp(
        lambda first, second, x, result, *channels: suits_cpp(x, (first, second, result), channels),
        _sums_of_parts_cpp,
    ),
)

_Input = structure(
    shape=Shape,
    **each(POINTER, "gradient x"),
    channels=_Channels,
    **each(POINTER, "of_weight of_bias"),
    masked=INT,
    of_x=POINTER,
)


def _gradient_reference(gradient: Tensor, masked: bool, x: Tensor, *rest: Any) -> Tensor:
    """Return the gradient of x; `masked`: whether `gradient` has been through ReLU's mask."""
    *channels, of_weight, of_bias = rest
    mean, inverse_deviation, weight, _ = channels
    passed, n = gradient if masked else _masked(gradient, x, None, *channels), max(rows_of(x), 1)
    standardised = (x - _column(mean)) * _column(inverse_deviation)
    of_x = _column(_scale(inverse_deviation, weight)) * (
        passed - _column(of_bias / n) - standardised * _column(of_weight / n)
    )
    return in_channels_last(of_x.to(x.dtype))


def _gradient_kernel(gradient: Tensor, masked: bool, x: Tensor, *rest: Any) -> Tensor:
    gradient, x, of_x = in_channels_last(gradient), in_channels_last(x), _new_like(x)
    *channels, of_weight, of_bias = _without_gaps(*rest)
    slabs = slabs_of(x, gradient, of_x)
    inputs = (slabs.shape, gradient, x, filled(_Channels, *channels))
    values = (of_weight, of_bias, masked, of_x)
    enqueue(_BACKWARD_SOURCE, "batch_norm_input", x, slabs.blocks, _Input, *inputs, *values)
    return of_x


def _gradient_cpp(gradient: Tensor, masked: bool, x: Tensor, *values: Any) -> Tensor:
    of_x = _new_like(x)
    batches = (in_channels_last(x), in_channels_last(gradient), None, None, None, of_x)
    call_cpp("gradient", *batches, *values, flag=masked)
    return of_x


register(
    "batch_norm_relu_gradient",
    "(Tensor gradient, bool masked, Tensor x, Tensor mean, Tensor inverse_deviation, "
    "Tensor? weight, Tensor? bias, Tensor of_weight, Tensor of_bias) -> Tensor",
    reference=_gradient_reference,
    kernel=_gradient_kernel,
    device=lambda gradient, masked, x, *_: kernel_device(x),
    fake=lambda gradient, masked, x, *_: _new_like(x),
    cpp=Cpp(lambda gradient, masked, x, *rest: suits_cpp(x, (gradient,), rest), _gradient_cpp),
)
