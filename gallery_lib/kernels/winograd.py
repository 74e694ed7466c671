"""Operator `gallery::winograd`: 3 × 3 convolutions of fp32 images on the CPU, by fewer products.

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
        cpp.Refused: for tensors that do not fit together; nothing is changed then.
    """
    _CPP.call("winograd", _COLUMNS, [tensors], turned, torch.get_num_threads())


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
    """Return the convolution [N, K, H, W] in plain torch, in channels_last."""
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
