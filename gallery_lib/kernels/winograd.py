"""Operators `gallery::winograd` and its gradient: 3 × 3 convolutions of fp32 images on the CPU.

oneDNN has no such form for x86. C++ (`cpu/winograd.cpp`) takes 16 products where a convolution
takes 36. Values differ from the convolution's by rounding of the same size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from gallery_lib.kernels.runtime import cpp
from gallery_lib.kernels.runtime.launch import LONG
from gallery_lib.kernels.runtime.operators import register

CHANNELS = 16
"""Channels, in and out, are multiples of this: a vector of the processor."""
_COLUMNS = ("image", "weight", "result")
_CPP = cpp.Functions("winograd.cpp", "-fopenmp", "-ffp-contract=fast", turned=LONG, threads=LONG)
available = _CPP.available


def convolve(tensors: Sequence[Tensor], turned: bool) -> None:
    """Write the result of a convolution, by the C++.

    Args:
        tensors: image [N, C, H, W] in channels_last, weight [K, C, 3, 3], and the result
            [N, K, H, W] in channels_last, all fp32.
        turned: convolve with the weight turned by half a turn and its channels exchanged, which is
            the gradient of the image. The image then has K channels, and the result C.

    Raises:
        cpp.Refused: for tensors that do not fit together; nothing is changed then. Also for too
            little memory, when some of the result may be written.
    """
    _CPP.call("winograd", _COLUMNS, [tensors], turned, torch.get_num_threads())


def differentiate(tensors: Sequence[Tensor]) -> None:
    """Write the gradient of a weight, by the C++.

    Args:
        tensors: image [N, C, H, W], the weight's gradient [K, C, 3, 3], which is written, and the
            gradient of the result [N, K, H, W]; else as for `convolve`.

    Raises:
        cpp.Refused: for tensors that do not fit together; nothing is changed then.
    """
    _CPP.call("winograd_gradient", _COLUMNS, [tensors], False, torch.get_num_threads())


def _takes(image: Tensor, weight: Tensor, turned: bool) -> bool:
    fits = not any(channels % CHANNELS for channels in weight.shape[:2])
    dense = weight.is_contiguous() or weight.is_contiguous(memory_format=torch.channels_last)
    fp32 = image.dtype is weight.dtype is torch.float32
    return fits and dense and fp32 and image.numel() > 0 and available()


def _in_cpp(image: Tensor, weight: Tensor, turned: bool) -> Tensor:
    image = image.contiguous(memory_format=torch.channels_last)
    result = _fake(image, weight, turned)
    convolve((image, weight, result), turned)
    return result


def _fake(image: Tensor, weight: Tensor, turned: bool) -> Tensor:
    shape = [image.shape[0], weight.shape[1 if turned else 0], *image.shape[2:]]
    return torch.empty(
        shape, dtype=image.dtype, device=image.device, memory_format=torch.channels_last
    )


def reference(image: Tensor, weight: Tensor, turned: bool) -> Tensor:
    """Return the result in channels_last, in plain torch; arguments as those of `convolve`."""
    if turned:
        weight = weight.flip(2, 3).transpose(0, 1)
    result = functional.conv2d(image, weight, padding=1)
    return result.contiguous(memory_format=torch.channels_last)


register(
    "winograd",
    "(Tensor image, Tensor weight, bool turned) -> Tensor",
    reference=reference,
    fake=_fake,
    cpp=_in_cpp,
    takes_cpp=_takes,
)


def _takes_gradient(gradient: Tensor, image: Tensor, weight: Tensor) -> bool:
    return gradient.dtype is torch.float32 and _takes(image, weight, False)


def _gradient_in_cpp(gradient: Tensor, image: Tensor, weight: Tensor) -> Tensor:
    gradient, image = (
        each.contiguous(memory_format=torch.channels_last) for each in (gradient, image)
    )
    result = torch.empty_like(weight)
    differentiate((image, result, gradient))
    return result


def reference_of_gradient(gradient: Tensor, image: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient of `weight`, laid out as it is, in plain torch."""
    options = None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False]
    result = torch.ops.aten.convolution_backward(gradient, image, weight, *options)[1]
    return torch.empty_like(weight).copy_(result)


register(
    "winograd_gradient",
    "(Tensor gradient, Tensor image, Tensor weight) -> Tensor",
    reference=reference_of_gradient,
    fake=lambda gradient, image, weight: torch.empty_like(weight),
    cpp=_gradient_in_cpp,
    takes_cpp=_takes_gradient,
)
