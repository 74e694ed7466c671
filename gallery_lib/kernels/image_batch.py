"""Crop, mirror and normalise uint8 images in one pass: `gallery::prepare_images`.

The result is a batch in channels_last. A batch crosses the bus as bytes, a quarter of its size in
fp32. The arithmetic is that of `data.images.image_folder.finish_batch`, bit by bit, so that runs
with and without the kernel see the same batches. (image / 255 − mean) / standard deviation is one
multiplication and one addition in fp32, both rounded; the result is then rounded to the wanted
dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gallery_lib.kernels.runtime.launch import (
    ELEMENTS,
    FLOAT,
    INT,
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
_Images = structure(
    images=POINTER,
    **each(INT, "height width cropped_height cropped_width"),
    **each(POINTER, "tops lefts mirrored"),
    **each(_Floats, "scale shift"),
    batch=POINTER,
    size=LONG,
)


def scale_and_shift(
    mean: Sequence[float], standard_deviation: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Return (s, b) per channel: byte · s + b = (byte / 255 − mean) / standard deviation."""
    pairs = list(zip(mean, standard_deviation, strict=True))
    return [1 / (255 * deviation) for _, deviation in pairs], [-m / d for m, d in pairs]


@dataclass(frozen=True)
class Preparation:
    """Parameters of the way from images to a batch: crop, mirroring, value · scale + shift.

    `tops` and `lefts` [N] say where each image is cropped, and `mirrored` [N] whether it is
    mirrored. Each of the three may be None.
    """

    tops: Tensor | None
    lefts: Tensor | None
    mirrored: Tensor | None
    height: int
    width: int
    scale: Sequence[float]
    shift: Sequence[float]
    dtype: torch.dtype


def prepare_images(
    images: Tensor,
    *,
    mean: Sequence[float],
    standard_deviation: Sequence[float],
    size: tuple[int, int] | None = None,
    tops: Tensor | None = None,
    lefts: Tensor | None = None,
    mirrored: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return the normalised batch [N, 3, h, w] in channels_last, on the device of `images`.

    Args:
        images: uint8 [N, H, W, 3].
        mean: mean of each of the three channels, in 0 to 1.
        standard_deviation: standard deviation of each of the three channels, in 0 to 1.
        size: (h, w) of the crop in pixels; the whole image when left out.
        tops: int32 [N], the first row of each image's crop; 0 when left out. Pixels outside of the
            image are NaN.
        lefts: int32 [N], the first column of each image's crop; 0 when left out.
        mirrored: bool [N], whether each crop is mirrored left to right.
        dtype: floating-point dtype of the batch.
    """
    assert images.dtype is torch.uint8 and images.dim() == 4 and images.shape[3] == _CHANNELS
    for tensor, wanted in ((tops, torch.int32), (lefts, torch.int32), (mirrored, torch.bool)):
        if tensor is not None:
            assert tensor.dtype is wanted and tensor.shape == images.shape[:1]
            assert tensor.device == images.device
    height, width = images.shape[1:3] if size is None else size
    scale, shift = scale_and_shift(mean, standard_deviation)
    return torch.ops.gallery.prepare_images(
        images, tops, lefts, mirrored, height, width, scale, shift, dtype
    )


def _reference(images: Tensor, *preparation: Any) -> Tensor:
    """Return the batch computed in plain torch; in fp64 for an fp64 result."""
    p = Preparation(*preparation)
    (count, height, width), device = images.shape[:3], images.device
    zero = torch.zeros(count, dtype=torch.int64, device=device)
    tops, lefts = (zero if t is None else t.long() for t in (p.tops, p.lefts))
    rows = torch.arange(p.height, device=device) + tops[:, None]  # [N, h]
    columns = torch.arange(p.width, device=device).expand(count, p.width)
    if p.mirrored is not None:
        columns = columns.flip(1).where(p.mirrored[:, None], columns)
    columns = columns + lefts[:, None]  # [N, w]
    inside = ((rows >= 0) & (rows < height))[:, :, None]
    inside = inside & ((columns >= 0) & (columns < width))[:, None, :]
    n = torch.arange(count, device=device)[:, None, None]
    y = rows.clamp(0, max(height - 1, 0))[:, :, None]
    x = columns.clamp(0, max(width - 1, 0))[:, None, :]
    wide = torch.float64 if p.dtype is torch.float64 else torch.float32
    pixels = images.new_zeros(count, p.height, p.width, _CHANNELS)
    pixels = images[n, y, x] if images.numel() else pixels
    scale, shift = (torch.tensor(v, dtype=wide, device=device) for v in (p.scale, p.shift))
    values = (pixels.to(wide) * scale + shift).where(inside[..., None], torch.nan)  # [N, h, w, 3]
    return values.to(p.dtype).permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)


def _device(images: Tensor, *preparation: Any) -> torch.device | None:
    return images.device if preparation[-1] in ELEMENTS else None


def _kernel(images: Tensor, *preparation: Any) -> Tensor:
    p = Preparation(*preparation)
    # These names keep the copies alive until the launch.
    images, batch = images.contiguous(), _fake(images, *preparation)
    places = [None if t is None else t.contiguous() for t in (p.tops, p.lefts, p.mirrored)]
    sizes = (*images.shape[1:3], p.height, p.width)
    statistics = (_Floats(*p.scale), _Floats(*p.shift))
    blocks = -(-batch.numel() // (THREADS * (16 // batch.element_size())))
    values = (images, *sizes, *places, *statistics, batch, batch.numel())
    enqueue("image_batch.cu", "prepare_images", batch, blocks, _Images, *values)
    return batch


def _fake(images: Tensor, *preparation: Any) -> Tensor:
    p = Preparation(*preparation)
    shape = (images.shape[0], _CHANNELS, p.height, p.width)
    return torch.empty(
        shape, dtype=p.dtype, device=images.device, memory_format=torch.channels_last
    )


register(
    "prepare_images",
    "(Tensor images, Tensor? tops, Tensor? lefts, Tensor? mirrored, int height, int width, "
    "float[] scale, float[] shift, ScalarType dtype) -> Tensor",
    reference=_reference,
    kernel=_kernel,
    device=_device,
    fake=_fake,
)
