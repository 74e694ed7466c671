"""Batch normalisation and ReLU in training: `gallery::batch_norm_relu`.

Tensors [N, C, H, W] are in channels_last. The forward pass is `batch_norm_statistics_`, then
`batch_norm_relu`; the backward pass is `batch_norm_relu_gradient`, which computes ReLU's mask from
the input again. So nothing is kept but the input, which the layer before keeps anyway.

Statistics are taken by Welford's method in fp32 and merged in fp64 in a fixed order. References
compute in fp32, or in fp64 for an fp64 input; values of channels are [C] in that dtype. `mean` and
`inverse_deviation`, which is 1 / √(variance + eps), normalise each channel. The C++
(`cpu/batch_norm.cpp`) takes fp32 and bf16; the number of its threads changes no bit of a result.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gallery_lib.kernels.runtime import cpp
from gallery_lib.kernels.runtime.launch import (
    DOUBLE,
    INT,
    LONG,
    POINTER,
    THREADS,
    each,
    enqueue,
    filled,
    structure,
)
from gallery_lib.kernels.runtime.operators import Autograd, kernel_device, register

OVER = (0, 2, 3)
TILE, LANES = 8, THREADS // 8
MERGED = (1024, 512)  # the most blocks and slabs where what slabs give has to be merged
APART = (4096, 4096)  # elsewhere: so many that it matters little how full the last wave is
_CPP = cpp.Functions(
    "batch_norm.cpp", "-fopenmp", **each(LONG, "given threads"), **each(DOUBLE, "number epsilon")
)
_COLUMNS = ("x", "gradient", "written", "mean", "second", "weight", "bias", "first", "last")
"""Tensors of a call of C++, in the order of `Column` in `cpu/batch_norm.h`."""
available = _CPP.available


def batch_norm_relu(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Return relu(batch_norm(x)) with this batch's statistics, in channels_last.

    Args:
        x: [N, C, H, W] in fp32, bf16, fp16 or fp64. Tensors [C] are fp32 (fp64 for fp64 x).
        running_mean: [C], updated in place, or None.
        running_var: [C], updated in place; None exactly where `running_mean` is None.
        weight: [C] or None.
        bias: [C] or None.
        momentum: the batch's share of the running statistics.
        eps: added to the variance.
    """
    statistics = torch.ops.gallery.batch_norm_statistics_(
        x.detach(), running_mean, running_var, momentum, eps
    )
    return torch.ops.gallery.batch_norm_relu(x, *statistics, weight, bias)


def call_cpp(
    function: str, *tensors: Tensor | None, number: float = 0.0, epsilon: float = 0.0
) -> None:
    """Call a function with the tensors of `_COLUMNS`, each of which may be None.

    Raises:
        cpp.Refused: for tensors that do not fit together; nothing is changed then.
    """
    row = [tensor for tensor in tensors if tensor is not None]
    names = [n for n, t in zip(_COLUMNS, tensors, strict=False) if t is not None]
    given = sum(1 << place for place, tensor in enumerate(tensors) if tensor is not None)
    threads = torch.get_num_threads()
    _CPP.call(f"batch_norm_{function}", names, [row], given, threads, number, epsilon)


def _suits_cpp(x: Tensor, *values: Tensor | None) -> bool:
    """Return whether batches like x and fp32 values [C] are what the C++ is written for."""
    return (
        x.dtype in (torch.bfloat16, torch.float32)
        and x.numel() > 0
        and all(v is None or (v.dtype is torch.float32 and v.is_contiguous()) for v in values)
        and available()
    )


def _arithmetic(x: Tensor) -> torch.dtype:
    """Return the dtype of the arithmetic on batches like `x`, and of their channels' values."""
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def _rows_of(x: Tensor) -> int:
    """Return how many values each channel has: N · H · W."""
    return x.shape[0] * x.shape[2] * x.shape[3]


def _in_channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


def _new_like(x: Tensor) -> Tensor:
    """Return a new tensor of x's shape and dtype, in channels_last."""
    return torch.empty(x.shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


def _new_pair(x: Tensor, *first: int) -> tuple[Tensor, Tensor]:
    """Return two new tensors [*first, C] in the dtype of the arithmetic."""
    shape, dtype = (*first, x.shape[1]), _arithmetic(x)
    return x.new_empty(shape, dtype=dtype), x.new_empty(shape, dtype=dtype)


def _without_gaps(*values: Tensor | None) -> list[Any]:
    return [None if value is None else value.contiguous() for value in values]


def _column(values: Tensor) -> Tensor:
    return values[:, None, None]


# --------------------------------------------------------------------------------------------------
# How kernels divide a batch.

_Shape = structure(**each(LONG, "rows rows_per_slab"), **each(INT, "channels tiles in_vectors"))
_Channels = structure(**each(POINTER, "mean inverse_deviation weight bias"))


def slabs_of(x: Tensor, *others: Tensor, most: tuple[int, int] = MERGED) -> tuple[Any, int, int]:
    """Return how x [N, C, H, W] in channels_last is divided: (structure, slabs, blocks).

    A slab is some of the rows, and a block works on a tile of a slab's channels. It depends only on
    the batch's shape, and so does every bit of a result. Results of slabs are [slabs, C] in fp32.
    `others` are the tensors that are read and written beside x; `most` is MERGED or APART.
    """
    rows, channels, width = _rows_of(x), x.shape[1], 16 // x.element_size()
    aligned = all(tensor.data_ptr() % 16 == 0 for tensor in (x, *others))
    in_vectors = aligned and channels % width == 0
    tiles = -(-channels // (TILE * width if in_vectors else TILE))
    wanted = max(4 * LANES, -(-rows * tiles // most[0]), -(-rows // most[1]))
    rows_per_slab = -(-wanted // LANES) * LANES
    count = -(-rows // rows_per_slab)
    shape = _Shape(rows, rows_per_slab, channels, tiles, in_vectors)
    return shape, count, count * tiles


# --------------------------------------------------------------------------------------------------
# Statistics of a batch.

_Moments = structure(shape=_Shape, **each(POINTER, "x means squares"))
_Combine = structure(
    **each(POINTER, "means squares"),
    **each(LONG, "rows rows_per_part"),
    **each(INT, "parts channels"),
    **each(POINTER, "mean inverse_deviation running_mean running_variance"),
    **each(DOUBLE, "momentum epsilon"),
)


def _count_versions(*changed: Tensor | None) -> None:
    """Tell autograd which tensors were changed in place."""
    torch.autograd.graph.increment_version([tensor for tensor in changed if tensor is not None])


def _statistics_reference(x: Tensor, *running: Any) -> tuple[Tensor, Tensor]:
    """Return (mean, inverse deviation) [C]; update running statistics."""
    running_mean, running_var, momentum, eps = running
    n, wide = _rows_of(x), _arithmetic(x)
    if n == 0:  # then the running statistics stay as they are
        mean, variance = x.new_zeros(2, x.shape[1], dtype=torch.float64).unbind()
    else:
        variance, mean = torch.var_mean(x.to(wide), OVER, correction=0)
        mean, variance = mean.double(), variance.double()
    if n and running_mean is not None and running_var is not None:
        running_mean.copy_((1 - momentum) * running_mean + momentum * mean)
        unbiased = variance * n / max(n - 1, 1)
        running_var.copy_((1 - momentum) * running_var + momentum * unbiased)
    _count_versions(running_mean, running_var)
    return mean.to(wide), (variance + eps).rsqrt().to(wide)


def _statistics_kernel(x: Tensor, *running: Any) -> tuple[Tensor, Tensor]:
    running_mean, running_var, momentum, eps = running
    x = _in_channels_last(x)
    shape, slabs, blocks = slabs_of(x)
    parts, results = _new_pair(x, slabs), _new_pair(x)
    enqueue("batch_norm.cu", "batch_norm_moments", x, blocks, _Moments, shape, x, *parts)
    merged = (*parts, shape.rows, shape.rows_per_slab, *parts[0].shape, *results)
    rest = (running_mean, running_var, momentum, eps)
    merge_blocks = -(-x.shape[1] // TILE)
    enqueue("batch_norm.cu", "batch_norm_combine", x, merge_blocks, _Combine, *merged, *rest)
    _count_versions(running_mean, running_var)
    return results


def _statistics_cpp(x: Tensor, *running: Any) -> tuple[Tensor, Tensor]:
    *changed, momentum, eps = running
    results = _new_pair(x)
    columns = (_in_channels_last(x), None, None, *results, None, None, *changed)
    call_cpp("statistics", *columns, number=momentum, epsilon=eps)
    _count_versions(*changed)
    return results


register(
    "batch_norm_statistics_",
    "(Tensor x, Tensor(a!)? running_mean, Tensor(b!)? running_var, float momentum, float eps) "
    "-> (Tensor, Tensor)",
    reference=_statistics_reference,
    kernel=_statistics_kernel,
    device=kernel_device,
    fake=lambda x, *_: _new_pair(x),
    cpp=_statistics_cpp,
    takes_cpp=lambda x, *running: _suits_cpp(x, *running[:2]),
)

# --------------------------------------------------------------------------------------------------
# Forward pass.

_Relu = structure(shape=_Shape, x=POINTER, channels=_Channels, result=POINTER)


def _relu_reference(x: Tensor, *channels: Any) -> Tensor:
    """Return relu((x − mean) · inverse deviation · weight + bias), in x's dtype."""
    mean, scale, weight, bias = channels
    value = (x - _column(mean)) * _column(scale if weight is None else scale * weight)
    if bias is not None:
        value = value + _column(bias)
    return _in_channels_last(value.relu().to(x.dtype))


def _relu_kernel(x: Tensor, *channels: Tensor | None) -> Tensor:
    # These names keep the copies alive until the launch.
    x, c = _in_channels_last(x), _without_gaps(*channels)
    result = _new_like(x)
    shape, _, blocks = slabs_of(x, result, most=APART)
    values = (shape, x, filled(_Channels, *c), result)
    enqueue("batch_norm.cu", "batch_norm_relu", x, blocks, _Relu, *values)
    return result


def _relu_cpp(x: Tensor, *channels: Tensor | None) -> Tensor:
    result = _new_like(x)
    call_cpp("forward", _in_channels_last(x), None, result, *channels)
    return result


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """Return the inputs' gradients; that of x includes what goes through mean and deviation."""
    x, *channels = ctx.saved_tensors
    of_x, *of_affine = torch.ops.gallery.batch_norm_relu_gradient(gradient, x, *channels)
    affine = zip(channels[2:], of_affine, strict=True)
    return of_x, None, None, *(None if value is None else of_value for value, of_value in affine)


register(
    "batch_norm_relu",
    "(Tensor x, Tensor mean, Tensor inverse_deviation, Tensor? weight, Tensor? bias) -> Tensor",
    reference=_relu_reference,
    kernel=_relu_kernel,
    device=kernel_device,
    fake=lambda x, *_: _new_like(x),
    cpp=_relu_cpp,
    takes_cpp=_suits_cpp,
    autograd=Autograd(lambda ctx, inputs, output: ctx.save_for_backward(*inputs), _backward),
)

# --------------------------------------------------------------------------------------------------
# Backward pass: two sums over each channel, then the gradient of the input from them.

_Sums = structure(
    shape=_Shape,
    **each(POINTER, "gradient x"),
    channels=_Channels,
    **each(POINTER, "products gradients"),
)
_Totals = structure(
    **each(POINTER, "products gradients inverse_deviation"),
    **each(INT, "slabs channels"),
    **each(POINTER, "of_weight of_bias"),
)
_Input = structure(
    shape=_Shape,
    **each(POINTER, "gradient x"),
    channels=_Channels,
    **each(POINTER, "of_weight of_bias of_x"),
)


def _gradient_reference(
    gradient: Tensor, x: Tensor, *channels: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, in channels_last, and of weight and bias [C]."""
    mean, inverse_deviation, weight, _ = channels
    passed = gradient.masked_fill(_relu_reference(x, *channels) <= 0, 0).to(_arithmetic(x))
    off, n = x - _column(mean), max(_rows_of(x), 1)
    of_weight, of_bias = (passed * off).sum(OVER) * inverse_deviation, passed.sum(OVER)
    standardised = off * _column(inverse_deviation)
    scale = inverse_deviation if weight is None else inverse_deviation * weight
    of_x = _column(scale) * (passed - _column(of_bias / n) - standardised * _column(of_weight / n))
    return _in_channels_last(of_x.to(x.dtype)), of_weight, of_bias


def _gradient_kernel(gradient: Tensor, x: Tensor, *channels: Any) -> tuple[Tensor, Tensor, Tensor]:
    # These names keep the copies alive until the launch.
    gradient, x, c = _in_channels_last(gradient), _in_channels_last(x), _without_gaps(*channels)
    of_x, *of_affine = results = _gradient_fake(gradient, x)
    shape, slabs, blocks = slabs_of(x, gradient)
    source = "batch_norm_backward.cu"
    parts, read = _new_pair(x, slabs), (gradient, x, filled(_Channels, *c))
    enqueue(source, "batch_norm_sums", x, blocks, _Sums, shape, *read, *parts)
    totals = (*parts, c[1], *parts[0].shape, *of_affine)
    merge_blocks = -(-x.shape[1] // TILE)
    enqueue(source, "batch_norm_totals", parts[0], merge_blocks, _Totals, *totals)
    shape, _, blocks = slabs_of(x, gradient, of_x, most=APART)
    enqueue(source, "batch_norm_input", x, blocks, _Input, shape, *read, *of_affine, of_x)
    return results


def _gradient_cpp(gradient: Tensor, x: Tensor, *channels: Any) -> tuple[Tensor, Tensor, Tensor]:
    of_x, *of_affine = results = _gradient_fake(gradient, x)
    read = (_in_channels_last(x), _in_channels_last(gradient))
    call_cpp("gradient", *read, of_x, *channels, *of_affine)
    return results


def _gradient_fake(gradient: Tensor, x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _new_like(x), *_new_pair(x)


register(
    "batch_norm_relu_gradient",
    "(Tensor gradient, Tensor x, Tensor mean, Tensor inverse_deviation, Tensor? weight, "
    "Tensor? bias) -> (Tensor, Tensor, Tensor)",
    reference=_gradient_reference,
    kernel=_gradient_kernel,
    device=lambda gradient, x, *_: kernel_device(x),
    fake=_gradient_fake,
    cpp=_gradient_cpp,
    takes_cpp=lambda gradient, x, *channels: gradient.dtype is x.dtype and _suits_cpp(x, *channels),
)
