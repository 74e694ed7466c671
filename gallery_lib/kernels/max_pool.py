"""Operators `gallery::max_pool` and its gradient: max pooling of channels_last images on the CPU.

The compiler writes the gradient as a scatter into an fp32 image that is not in channels_last. Here
C++ (`cpu/max_pool.cpp`) goes over the image once. Values, ties and NaN are torch's. A gradient is
added up in fp32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gallery_lib.kernels.runtime import cpp
from gallery_lib.kernels.runtime.launch import LONG
from gallery_lib.kernels.runtime.operators import Autograd, register

LARGEST_WINDOW = 256
"""Elements of a window, at most: an element's place in it is kept in a byte."""

_COLUMNS = ("image", "pooled", "offsets")
_Two: Any = LONG * 2
_CPP = cpp.Functions(
    "max_pool.cpp", "-fopenmp", kernel=_Two, stride=_Two, padding=_Two, threads=LONG
)
available = _CPP.available


def pooled_sizes(
    sizes: Sequence[Any],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
) -> list[Any]:
    """Return the height and width of the result for an image of `sizes`, as torch has them."""
    result = []
    for size, window, step, beside in zip(sizes, kernel, stride, padding, strict=True):
        whole = size + 2 * beside - window
        count = (whole + (step - 1 if ceil_mode else 0)) // step + 1
        if ceil_mode and (count - 1) * step >= size + beside:
            count -= 1  # the last window would begin behind the image
        result.append(count)
    return result


def call_cpp(function: str, tensors: Sequence[Tensor], *window: Sequence[int]) -> None:
    """Call a function with the tensors of `_COLUMNS`.

    Raises:
        cpp.Refused: for tensors that do not fit together; nothing is changed then.
    """
    values = (*(_Two(*two) for two in window), torch.get_num_threads())
    _CPP.call(f"max_pool_{function}", _COLUMNS, [tensors], *values)


def _channels_last(shape: Sequence[Any], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty(
        shape,
        dtype=dtype or like.dtype,
        device=like.device,
        memory_format=torch.channels_last,
    )


def _takes(tensor: Tensor, *_: Any) -> bool:
    return tensor.dtype in (torch.bfloat16, torch.float32) and tensor.numel() > 0 and available()


def _fake(
    image: Tensor, kernel: Any, stride: Any, padding: Any, ceil_mode: bool
) -> tuple[Tensor, Tensor]:
    sizes = pooled_sizes(image.shape[2:], kernel, stride, padding, ceil_mode)
    shape = [*image.shape[:2], *sizes]
    return _channels_last(shape, image), _channels_last(shape, image, torch.uint8)


def _pooled(
    image: Tensor, kernel: Any, stride: Any, padding: Any, ceil_mode: bool
) -> tuple[Tensor, Tensor]:
    image = image.contiguous(memory_format=torch.channels_last)
    pooled, offsets = _fake(image, kernel, stride, padding, ceil_mode)
    call_cpp("forward", (image, pooled, offsets), kernel, stride, padding)
    return pooled, offsets


def _reference(
    image: Tensor, kernel: Any, stride: Any, padding: Any, ceil_mode: bool
) -> tuple[Tensor, Tensor]:
    """Return the pooled image [N, C, OH, OW] and, in bytes, each result's place in its window."""
    pooled, indices = functional.max_pool2d(
        image, kernel, stride, padding, ceil_mode=ceil_mode, return_indices=True
    )
    top, left = _corners(pooled, stride, padding)
    width = image.shape[3]
    offsets = (indices // width - top) * kernel[1] + indices % width - left
    return (
        pooled.contiguous(memory_format=torch.channels_last),
        offsets.to(torch.uint8).contiguous(memory_format=torch.channels_last),
    )


def _corners(pooled: Tensor, stride: Any, padding: Any) -> tuple[Tensor, Tensor]:
    """Return the rows [OH, 1] and columns [OW] of the image at which windows begin."""
    rows, columns = (torch.arange(size, device=pooled.device) for size in pooled.shape[2:])
    return (rows * stride[0] - padding[0])[:, None], columns * stride[1] - padding[1]


def _fake_gradient(gradient: Tensor, offsets: Tensor, sizes: Any, *_: Any) -> Tensor:
    return _channels_last([*gradient.shape[:2], *sizes], gradient)


def _gradient(
    gradient: Tensor, offsets: Tensor, sizes: Any, kernel: Any, stride: Any, padding: Any
) -> Tensor:
    gradient, offsets = (
        tensor.contiguous(memory_format=torch.channels_last) for tensor in (gradient, offsets)
    )
    of_image = _fake_gradient(gradient, offsets, sizes)
    call_cpp("backward", (of_image, gradient, offsets), kernel, stride, padding)
    return of_image


def _gradient_reference(
    gradient: Tensor, offsets: Tensor, sizes: Any, kernel: Any, stride: Any, padding: Any
) -> Tensor:
    """Return the gradient of an image of `sizes`, height and width, in plain torch."""
    top, left = _corners(gradient, stride, padding)
    place = offsets.long()
    indices = (top + place // kernel[1]) * sizes[1] + left + place % kernel[1]
    wide = gradient if gradient.dtype is torch.float64 else gradient.float()
    flat = wide.new_zeros(*gradient.shape[:2], sizes[0] * sizes[1])
    flat.scatter_add_(2, indices.flatten(2), wide.flatten(2))
    result = flat.view(*gradient.shape[:2], *sizes).to(gradient.dtype)
    return result.contiguous(memory_format=torch.channels_last)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    image, *ctx.window, _ = inputs
    ctx.sizes = image.shape[2:]
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1])


def _backward(ctx: Any, of_pooled: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    (offsets,) = ctx.saved_tensors
    of_image = torch.ops.gallery.max_pool_gradient(of_pooled, offsets, ctx.sizes, *ctx.window)
    return of_image, None, None, None, None


register(
    "max_pool",
    "(Tensor image, int[] kernel, int[] stride, int[] padding, bool ceil_mode) -> (Tensor, Tensor)",
    reference=_reference,
    fake=_fake,
    cpp=_pooled,
    takes_cpp=_takes,
    autograd=Autograd(_keep, _backward),
)
register(
    "max_pool_gradient",
    "(Tensor gradient, Tensor offsets, SymInt[] sizes, int[] kernel, int[] stride, int[] padding) "
    "-> Tensor",
    reference=_gradient_reference,
    fake=_fake_gradient,
    cpp=_gradient,
    takes_cpp=_takes,
)
