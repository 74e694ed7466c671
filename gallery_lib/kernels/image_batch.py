"""Normalise uint8 images in one pass: `gallery::prepare_images`, a batch in channels_last.

A batch crosses the bus as bytes, a quarter of its size in fp32. The arithmetic is that of
`data.images.image_folder.finish_batch`, bit by bit, so that runs with and without the kernel see
the same batches. (image / 255 − mean) / standard deviation is one multiplication and one addition
in fp32, both rounded; the result is then rounded to the wanted dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gallery_lib.kernels.runtime.launch import (
    ELEMENTS,
    FLOAT,
    LONG,
    POINTER,
    THREADS,
    each,
    enqueue,
    structure,
)
from gallery_lib.kernels.runtime.operators import register

_CHANNELS = 3
_Floats: Any = FLOAT * _CHANNELS
_Images = structure(images=POINTER, **each(_Floats, "scale shift"), batch=POINTER, size=LONG)


def scale_and_shift(
    mean: Sequence[float], standard_deviation: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Return (s, b) per channel: byte · s + b = (byte / 255 − mean) / standard deviation."""
    pairs = list(zip(mean, standard_deviation, strict=True))
    return [1 / (255 * deviation) for _, deviation in pairs], [-m / d for m, d in pairs]


def prepare_images(
    images: Tensor,
    *,
    mean: Sequence[float],
    standard_deviation: Sequence[float],
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return the normalised batch [N, 3, H, W] in channels_last, on the device of `images`.

    Args:
        images: uint8 [N, H, W, 3].
        mean: mean of each of the three channels, in 0 to 1.
        standard_deviation: standard deviation of each of the three channels, in 0 to 1.
        dtype: floating-point dtype of the batch.
    """
    assert images.dtype is torch.uint8 and images.dim() == 4 and images.shape[3] == _CHANNELS
    scale, shift = scale_and_shift(mean, standard_deviation)
    return torch.ops.gallery.prepare_images(images, scale, shift, dtype)


def _reference(images: Tensor, scale: Any, shift: Any, dtype: torch.dtype) -> Tensor:
    """Return the batch computed in plain torch; in fp64 for an fp64 result."""
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    by, plus = (torch.tensor(v, dtype=wide, device=images.device) for v in (scale, shift))
    values = (images.to(wide) * by + plus).to(dtype)  # [N, H, W, 3]
    return values.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)


def _kernel(images: Tensor, scale: Any, shift: Any, dtype: torch.dtype) -> Tensor:
    # These names keep the copies alive until the launch.
    images, batch = images.contiguous(), _fake(images, scale, shift, dtype)
    blocks = -(-batch.numel() // (THREADS * (16 // batch.element_size())))
    values = (images, _Floats(*scale), _Floats(*shift), batch, batch.numel())
    enqueue("image_batch.cu", "prepare_images", batch, blocks, _Images, *values)
    return batch


def _fake(images: Tensor, scale: Any, shift: Any, dtype: torch.dtype) -> Tensor:
    shape, last = (images.shape[0], _CHANNELS, *images.shape[1:3]), torch.channels_last
    return torch.empty(shape, dtype=dtype, device=images.device, memory_format=last)


register(
    "prepare_images",
    "(Tensor images, float[] scale, float[] shift, ScalarType dtype) -> Tensor",
    reference=_reference,
    kernel=_kernel,
    device=lambda images, scale, shift, dtype: images.device if dtype in ELEMENTS else None,
    fake=_fake,
)
