"""Batch normalisation, addition of a residual and ReLU in training: `gallery::batch_norm_relu`.

Tensors are in channels_last. Forward reads the input twice and the residual once, and writes once.
For backward it keeps its input and (with a residual) its result, which neighbouring layers keep
anyway. Statistics and sums are in fp32 by Welford's method, merged in fp64 in a fixed order.

- Forward in one process: `batch_norm_statistics_`, `batch_norm_relu`.
- Forward in several processes: `batch_norm_partial` in each, a gather of (count, mean, squares),
  `batch_norm_combine_`, `batch_norm_relu`.
- Backward: `batch_norm_relu_sums`, which several processes add up, `batch_norm_relu_gradient`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gallery_lib.errors import InputError
from gallery_lib.kernels import batch_norm_launch as plan
from gallery_lib.kernels import batch_norm_reference as rules
from gallery_lib.kernels.batch_norm_reference import Channels, Running
from gallery_lib.kernels.gradient_statistics import ELEMENTS
from gallery_lib.kernels.runtime import call_counts, fallback, launch

_DEFINITIONS = {
    "batch_norm_partial": "(Tensor x) -> (Tensor, Tensor)",
    "batch_norm_combine_": (
        "(Tensor counts, Tensor means, Tensor squares, Tensor(a!)? running_mean, "
        "Tensor(b!)? running_var, Tensor? batches, float? momentum, float eps) -> (Tensor, Tensor)"
    ),
    "batch_norm_statistics_": (
        "(Tensor x, Tensor(a!)? running_mean, Tensor(b!)? running_var, Tensor(c!)? batches, "
        "float? momentum, float eps) -> (Tensor, Tensor)"
    ),
    "batch_norm_relu": (
        "(Tensor x, Tensor? residual, Tensor mean, Tensor inverse_deviation, Tensor? weight, "
        "Tensor? bias) -> Tensor"
    ),
    "batch_norm_relu_sums": (
        "(Tensor gradient, Tensor x, Tensor? result, Tensor mean, Tensor inverse_deviation, "
        "Tensor? weight, Tensor? bias) -> (Tensor, Tensor, Tensor)"
    ),
    "batch_norm_relu_gradient": (
        "(Tensor gradient, bool masked, Tensor x, Tensor mean, Tensor inverse_deviation, "
        "Tensor? weight, Tensor? bias, Tensor of_weight, Tensor of_bias, Tensor? count) -> Tensor"
    ),
}
for _name, _schema in _DEFINITIONS.items():
    torch.library.define(f"gallery::{_name}", _schema)


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
    fp64 x). Raises InputError when the arguments do not fit together.

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
    """
    if x.dim() != 4 or not x.is_floating_point():
        raise InputError(
            f"batch_norm_relu takes floating-point [N, C, H, W]; got {x.dtype} {tuple(x.shape)}."
        )
    if residual is not None and (residual.shape != x.shape or residual.dtype is not x.dtype):
        raise InputError(
            f"a residual must be like x, {x.dtype} {tuple(x.shape)}; got {residual.dtype} "
            f"{tuple(residual.shape)}."
        )
    for name, each in (
        ("running_mean", running_mean),
        ("running_var", running_var),
        ("weight", weight),
        ("bias", bias),
    ):
        if each is not None and (
            each.shape != x.shape[1:2] or each.dtype is not rules.arithmetic(x)
        ):
            raise InputError(
                f"{name} must be {rules.arithmetic(x)} [{x.shape[1]}] for this batch; got "
                f"{each.dtype} {tuple(each.shape)}."
            )
    if (running_mean is None) != (running_var is None):
        raise InputError("batch_norm_relu takes both running_mean and running_var, or neither.")
    operators = torch.ops.gallery
    statistics = operators.batch_norm_statistics_(
        x.detach(), running_mean, running_var, batches, momentum, eps
    )
    return operators.batch_norm_relu(x, residual, *statistics, weight, bias)


def _kernels_run(x: Tensor, *_: Any) -> bool:
    return x.dtype in ELEMENTS and fallback.kernels_run(x.device)


def _combine_kernel_runs(counts: Tensor, means: Tensor, *_: Any) -> bool:
    return means.dtype is torch.float32 and fallback.kernels_run(means.device)


def _gradient_kernel_runs(gradient: Tensor, masked: bool, x: Tensor, *_: Any) -> bool:
    return _kernels_run(x)


def _sums_kernel_runs(gradient: Tensor, x: Tensor, *_: Any) -> bool:
    return _kernels_run(x)


def _laid_out(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


def _like(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


def _two_of_channels(x: Tensor, *first: int) -> tuple[Tensor, Tensor]:
    shape, dtype = (*first, x.shape[1]), rules.arithmetic(x)
    return x.new_empty(shape, dtype=dtype), x.new_empty(shape, dtype=dtype)


def _bump(*changed: Tensor | None) -> None:
    """Tell autograd which tensors were changed in place."""
    torch.autograd.graph.increment_version([tensor for tensor in changed if tensor is not None])


def _partial_on_cuda(x: Tensor) -> tuple[Tensor, Tensor]:
    if not _kernels_run(x):
        return rules.partial(x)
    x = _laid_out(x)
    slabs = plan.slabs_of(x)
    parts, (mean, squares) = _two_of_channels(x, slabs.count), _two_of_channels(x)
    launch.run(plan.moments(x, slabs, *parts), x.device)
    launch.run(plan.combine(*parts, slabs, Running(), 0.0, mean, squares_of_all=squares), x.device)
    return mean, squares


def _combine_on_cpu(
    counts: Tensor,
    means: Tensor,
    squares: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    batches: Tensor | None,
    momentum: float | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    result = rules.combine(
        counts, means, squares, Running(running_mean, running_var, batches, momentum), eps
    )
    _bump(running_mean, running_var)
    return result


def _combine_on_cuda(
    counts: Tensor, means: Tensor, squares: Tensor, *rest: Any
) -> tuple[Tensor, Tensor]:
    """Combine parts on CUDA, with the arguments of `_combine_on_cpu`."""
    if not _combine_kernel_runs(counts, means):
        return _combine_on_cpu(counts, means, squares, *rest)
    *running, eps = rest
    counts, means, squares = counts.contiguous(), means.contiguous(), squares.contiguous()
    mean, inverse_deviation = torch.empty_like(means[0]), torch.empty_like(means[0])
    each = plan.combine(
        means, squares, counts, Running(*running), eps, mean, inverse_deviation=inverse_deviation
    )
    launch.run(each, means.device)
    _bump(*running[:2])
    return mean, inverse_deviation


def _statistics_on_cpu(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    batches: Tensor | None,
    momentum: float | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    if batches is not None:
        batches.add_(1)
        _bump(batches)
    mean, squares = rules.partial(x)
    counts = torch.full((1,), rules.rows(x), device=x.device)
    return _combine_on_cpu(
        counts, mean[None], squares[None], running_mean, running_var, batches, momentum, eps
    )


def _statistics_on_cuda(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Compute statistics on CUDA, with the arguments of `_statistics_on_cpu`."""
    if not _kernels_run(x):
        return _statistics_on_cpu(x, *rest)
    *running, eps = rest
    x = _laid_out(x)
    slabs = plan.slabs_of(x)
    parts, (mean, inverse_deviation) = _two_of_channels(x, slabs.count), _two_of_channels(x)
    launch.run(plan.moments(x, slabs, *parts, running[2]), x.device)
    launch.run(
        plan.combine(
            *parts, slabs, Running(*running), eps, mean, inverse_deviation=inverse_deviation
        ),
        x.device,
    )
    _bump(*running[:3])
    return mean, inverse_deviation


def _relu_on_cpu(x: Tensor, residual: Tensor | None, *channels: Tensor) -> Tensor:
    return rules.normalise(x, residual, Channels(*channels))


def _relu_on_cuda(x: Tensor, residual: Tensor | None, *channels: Tensor) -> Tensor:
    if not _kernels_run(x):
        return _relu_on_cpu(x, residual, *channels)
    # These names keep the copies alive until the launch.
    x, residual, result = (
        _laid_out(x),
        None if residual is None else _laid_out(residual),
        _like(x),
    )
    c = Channels(*(None if each is None else each.contiguous() for each in channels))  # type: ignore[arg-type]
    launch.run(plan.normalise(x, residual, c, result), x.device)
    return result


def _sums_on_cpu(
    gradient: Tensor, x: Tensor, result: Tensor | None, *channels: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    of_weight, of_bias, masked = rules.sums(gradient, x, result, Channels(*channels))
    return of_weight, of_bias, masked if result is not None else x.new_empty(0)


def _sums_on_cuda(
    gradient: Tensor, x: Tensor, result: Tensor | None, *channels: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    if not _kernels_run(x):
        return _sums_on_cpu(gradient, x, result, *channels)
    gradient, x, result = (
        _laid_out(gradient),
        _laid_out(x),
        None if result is None else _laid_out(result),
    )
    c = Channels(*(None if each is None else each.contiguous() for each in channels))  # type: ignore[arg-type]
    of_weight, of_bias, masked = _sums_fake(gradient, x, result)
    slabs = plan.slabs_of(x, gradient, result, masked if result is not None else None)
    parts = _two_of_channels(x, slabs.count)
    launch.run(plan.sums(gradient, x, result, c, masked, slabs, parts), x.device)
    launch.run(plan.totals(*parts, c.inverse_deviation, of_weight, of_bias), x.device)
    return of_weight, of_bias, masked


def _gradient_on_cpu(gradient: Tensor, masked: bool, x: Tensor, *rest: Any) -> Tensor:
    *channels, of_weight, of_bias, count = rest
    c = Channels(*channels)
    passed = gradient if masked else rules.sums(gradient, x, None, c)[2]
    return rules.of_input(passed, x, c, of_weight, of_bias, count)


def _gradient_on_cuda(gradient: Tensor, masked: bool, x: Tensor, *rest: Any) -> Tensor:
    """Compute the gradient of x on CUDA, with the arguments of `_gradient_on_cpu`."""
    if not _kernels_run(x):
        return _gradient_on_cpu(gradient, masked, x, *rest)
    gradient, x, of_x = _laid_out(gradient), _laid_out(x), _like(x)
    without_gaps: list[Any] = [None if each is None else each.contiguous() for each in rest]
    *channels, of_weight, of_bias, count = without_gaps
    launch.run(
        plan.of_input(gradient, masked, x, Channels(*channels), of_weight, of_bias, count, of_x),
        x.device,
    )
    return of_x


for _name, _on_cpu, _on_cuda, _is_kernel in (
    ("batch_norm_partial", rules.partial, _partial_on_cuda, _kernels_run),
    ("batch_norm_combine_", _combine_on_cpu, _combine_on_cuda, _combine_kernel_runs),
    ("batch_norm_statistics_", _statistics_on_cpu, _statistics_on_cuda, _kernels_run),
    ("batch_norm_relu", _relu_on_cpu, _relu_on_cuda, _kernels_run),
    ("batch_norm_relu_sums", _sums_on_cpu, _sums_on_cuda, _sums_kernel_runs),
    ("batch_norm_relu_gradient", _gradient_on_cpu, _gradient_on_cuda, _gradient_kernel_runs),
):
    torch.library.impl(f"gallery::{_name}", "cpu", call_counts.counted(_name, _on_cpu))
    torch.library.impl(
        f"gallery::{_name}", "cuda", call_counts.counted(_name, _on_cuda, _is_kernel)
    )


@torch.library.register_fake("gallery::batch_norm_partial")
@torch.library.register_fake("gallery::batch_norm_statistics_")
def _statistics_fake(x: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _two_of_channels(x)


@torch.library.register_fake("gallery::batch_norm_combine_")
def _combine_fake(counts: Tensor, means: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(means[0]), torch.empty_like(means[0])


@torch.library.register_fake("gallery::batch_norm_relu")
def _relu_fake(x: Tensor, *_: Any) -> Tensor:
    return _like(x)


@torch.library.register_fake("gallery::batch_norm_relu_sums")
def _sums_fake(
    gradient: Tensor, x: Tensor, result: Tensor | None, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return *_two_of_channels(x), _like(x) if result is not None else x.new_empty(0)


@torch.library.register_fake("gallery::batch_norm_relu_gradient")
def _gradient_fake(gradient: Tensor, masked: bool, x: Tensor, *_: Any) -> Tensor:
    return _like(x)


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


torch.library.register_autograd("gallery::batch_norm_relu", _backward, setup_context=_keep)
