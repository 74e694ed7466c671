"""Batch normalisation, addition of a residual and ReLU in training: `gallery::batch_norm_relu`.

Tensors are in channels_last. Forward reads the input twice and the residual once, and writes once.
For backward it keeps its input and (with a residual) its result, which neighbouring layers keep
anyway. Statistics and sums are in fp32 by Welford's method, merged in fp64 in a fixed order.

- Forward: statistics of the batch (`batch_norm_statistics`), then `batch_norm_relu`.
- Backward: `batch_norm_relu_sums`, which several processes add up, `batch_norm_relu_gradient`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gallery_lib.errors import InputError
from gallery_lib.kernels import (
    batch_norm_cpp,
    batch_norm_statistics,  # noqa: F401  registers its operators
)
from gallery_lib.kernels import batch_norm_launch as plan
from gallery_lib.kernels import batch_norm_reference as rules
from gallery_lib.kernels.batch_norm_buffers import (
    in_channels_last,
    new_like,
    new_pair,
    without_gaps,
)
from gallery_lib.kernels.batch_norm_reference import Channels
from gallery_lib.kernels.runtime import launch
from gallery_lib.kernels.runtime.operators import Autograd, Cpp, kernel_device, register


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
    if x.dim() != 4 or not x.is_floating_point():
        raise InputError(
            f"batch_norm_relu takes floating-point [N, C, H, W]; got {x.dtype} {tuple(x.shape)}.",
            parameter="x",
        )
    if residual is not None and (residual.shape != x.shape or residual.dtype is not x.dtype):
        raise InputError(
            f"a residual must be like x, {x.dtype} {tuple(x.shape)}; got {residual.dtype} "
            f"{tuple(residual.shape)}.",
            parameter="residual",
        )
    for name, tensor in channels.items():
        if tensor is not None and (
            tensor.shape != x.shape[1:2] or tensor.dtype is not rules.arithmetic(x)
        ):
            raise InputError(
                f"{name} must be {rules.arithmetic(x)} [{x.shape[1]}] for this batch; got "
                f"{tensor.dtype} {tuple(tensor.shape)}.",
                parameter=name,
            )
    if (channels["running_mean"] is None) != (channels["running_var"] is None):
        raise InputError(
            "batch_norm_relu takes both running_mean and running_var, or neither.",
            parameter="running_mean",
        )


def _relu_reference(x: Tensor, residual: Tensor | None, *channels: Tensor) -> Tensor:
    return rules.normalise(x, residual, Channels(*channels))


def _relu_kernel(x: Tensor, residual: Tensor | None, *channels: Tensor) -> Tensor:
    # These names keep the copies alive until the launch.
    x, residual, result = (
        in_channels_last(x),
        None if residual is None else in_channels_last(residual),
        new_like(x),
    )
    c = without_gaps(*channels)
    launch.run(plan.normalise(x, residual, c, result), x.device)
    return result


def _relu_fake(x: Tensor, *_: Any) -> Tensor:
    return new_like(x)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, residual, *channels = inputs
    ctx.save_for_backward(x, None if residual is None else output, *channels)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of the operator's inputs.

    Mean and deviation count as functions of x. The gradient of x includes what goes through them,
    and they get no gradient themselves.
    """
    x, result, *channels = ctx.saved_tensors
    of_weight, of_bias, masked = torch.ops.gallery.batch_norm_relu_sums(
        gradient, x, result, *channels
    )
    passed, is_masked = (gradient, False) if result is None else (masked, True)
    of_x = None
    if ctx.needs_input_grad[0]:
        of_x = torch.ops.gallery.batch_norm_relu_gradient(
            passed, is_masked, x, *channels, of_weight, of_bias, None
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
    fake=_relu_fake,
    cpp=Cpp(batch_norm_cpp.takes_relu, batch_norm_cpp.relu),
    autograd=Autograd(_keep, _backward),
)


def _sums_reference(
    gradient: Tensor, x: Tensor, result: Tensor | None, *channels: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    of_weight, of_bias, masked = rules.sums(gradient, x, result, Channels(*channels))
    return of_weight, of_bias, masked if result is not None else x.new_empty(0)


def _sums_kernel(
    gradient: Tensor, x: Tensor, result: Tensor | None, *channels: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    gradient, x, result = (
        in_channels_last(gradient),
        in_channels_last(x),
        None if result is None else in_channels_last(result),
    )
    c = without_gaps(*channels)
    of_weight, of_bias, masked = _sums_fake(gradient, x, result)
    slabs = plan.slabs_of(x, gradient, result, masked if result is not None else None)
    parts = new_pair(x, slabs.count)
    launch.run(plan.sums(gradient, x, result, c, masked, slabs, parts), x.device)
    launch.run(plan.totals(*parts, c.inverse_deviation, of_weight, of_bias), x.device)
    return of_weight, of_bias, masked


def _sums_fake(
    gradient: Tensor, x: Tensor, result: Tensor | None, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return *new_pair(x), new_like(x) if result is not None else x.new_empty(0)


register(
    "batch_norm_relu_sums",
    "(Tensor gradient, Tensor x, Tensor? result, Tensor mean, Tensor inverse_deviation, "
    "Tensor? weight, Tensor? bias) -> (Tensor, Tensor, Tensor)",
    reference=_sums_reference,
    kernel=_sums_kernel,
    device=lambda gradient, x, *_: kernel_device(x),
    fake=_sums_fake,
    cpp=Cpp(batch_norm_cpp.takes_sums, batch_norm_cpp.sums),
)


def _gradient_reference(gradient: Tensor, masked: bool, x: Tensor, *rest: Any) -> Tensor:
    *channels, of_weight, of_bias, count = rest
    c = Channels(*channels)
    passed = gradient if masked else rules.sums(gradient, x, None, c)[2]
    return rules.of_input(passed, x, c, of_weight, of_bias, count)


def _gradient_kernel(gradient: Tensor, masked: bool, x: Tensor, *rest: Any) -> Tensor:
    gradient, x, of_x = in_channels_last(gradient), in_channels_last(x), new_like(x)
    contiguous: list[Any] = [None if value is None else value.contiguous() for value in rest]
    *channels, of_weight, of_bias, count = contiguous
    launch.run(
        plan.of_input(gradient, masked, x, Channels(*channels), of_weight, of_bias, count, of_x),
        x.device,
    )
    return of_x


def _gradient_fake(gradient: Tensor, masked: bool, x: Tensor, *_: Any) -> Tensor:
    return new_like(x)


register(
    "batch_norm_relu_gradient",
    "(Tensor gradient, bool masked, Tensor x, Tensor mean, Tensor inverse_deviation, "
    "Tensor? weight, Tensor? bias, Tensor of_weight, Tensor of_bias, Tensor? count) -> Tensor",
    reference=_gradient_reference,
    kernel=_gradient_kernel,
    device=lambda gradient, masked, x, *_: kernel_device(x),
    fake=_gradient_fake,
    cpp=Cpp(batch_norm_cpp.takes_gradient, batch_norm_cpp.gradient_of_input),
)
