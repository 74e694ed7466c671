"""Turn an image file into a training image: choose a crop, decode what it needs, cut, resize.

The random resized crop is the usual one of ImageNet training (Szegedy et al., "Going Deeper with
Convolutions", 2014), with the distribution of torchvision's RandomResizedCrop. The centre crop is
torchvision's Resize(size · 256/224) + CenterCrop(size), taken from the full image in one step.

simplejpeg (libjpeg-turbo) decodes. Decoding must start at the top, but can stop early: in the
buffered copy of the file, the image height in the header is lowered to the crop's last row. That is
exact, and saves a tenth of the decoding time of random crops. Scaled decoding (libjpeg's 1/2, 1/4)
measured slower, since Huffman decoding dominates. The resize is torch's antialiased bilinear one on
uint8, about three times as fast as Pillow's. Each thread reuses its buffer for pixels, since fresh
memory costs page faults.

Pillow reads what simplejpeg does not read as RGB: other formats, CMYK, damaged files. Warnings that
Pillow ignores are ignored here too. As in torchvision's loader, the first frame is taken, converted
to RGB, and not rotated as EXIF says.
"""

from __future__ import annotations

import io
import math
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image

from gallery_lib.data.folders import unfit_file

Box = tuple[int, int, int, int]  # top, left, height, width, in pixels
ChooseBox = Callable[[int, int], Box]  # (image height, image width) → the crop

SCALE = (0.08, 1.0)  # crop area over image area
RATIO = (3 / 4, 4 / 3)  # crop width over height
CENTRE_FRACTION = 224 / 256
_ATTEMPTS = 10
_END_OF_IMAGE = b"\xff\xd9"
_MARGIN_ROWS = 2  # chroma up-sampling looks one chroma row further down
_BLOCK_ROWS = 16  # rows of the largest usual coding unit
_SUBSAMPLINGS = ("444", "422", "420")  # in these a coding unit has at most _BLOCK_ROWS rows


def random_resized_crop(rng: np.random.Generator, height: int, width: int) -> Box:
    """Return a random crop of a height × width image."""
    narrowest, widest = math.log(RATIO[0]), math.log(RATIO[1])
    for area, ratio in rng.random((2, _ATTEMPTS)).T.tolist():
        area = height * width * (SCALE[0] + area * (SCALE[1] - SCALE[0]))
        ratio = math.exp(narrowest + ratio * (widest - narrowest))
        crop_width, crop_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            return (
                int(rng.integers(height - crop_height + 1)),
                int(rng.integers(width - crop_width + 1)),
                crop_height,
                crop_width,
            )
    # no attempt fitted, as in a very long image: take the largest central crop within RATIO
    crop_width, crop_height = (
        min(width, round(height * RATIO[1])),
        min(height, round(width / RATIO[0])),
    )
    crop_width, crop_height = max(1, crop_width), max(1, crop_height)
    return (height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width


def centre_crop(height: int, width: int) -> Box:
    """Return the central square of an image; its side is 224/256 of the shorter side."""
    side = max(1, round(min(height, width) * CENTRE_FRACTION))
    return round((height - side) / 2), round((width - side) / 2), side, side


class _Pixels(threading.local):
    """Reused memory of one thread; its content is valid until the thread decodes its next image."""

    memory: NDArray[np.uint8] = np.empty(0, np.uint8)

    def of(self, count: int) -> NDArray[np.uint8]:
        """Return a buffer of at least `count` bytes."""
        if len(self.memory) < count:
            self.memory = np.empty(2 * count, np.uint8)
        return self.memory


_pixels = _Pixels()


def load(
    path: str | bytes | os.PathLike[str],
    choose_box: ChooseBox,
    size: tuple[int, int],
    *,
    mirror: bool = False,
    fast: bool = False,
) -> torch.Tensor:
    """Return the crop that `choose_box` picks, resized to uint8 [*size, 3], RGB, contiguous.

    `mirror` flips the result left to right. `fast` takes libjpeg's fast inverse DCT, which is 4 %
    quicker and on average one level of 255 away from the exact one.

    Raises:
        InputError: naming the file, when it cannot be read or is damaged.
    """
    try:
        data = memoryview(bytearray(Path(os.fsdecode(path)).read_bytes()))
    except OSError as error:
        raise unfit_file(path, f"{error.strerror}. Is the data folder complete?") from error
    try:
        pixels, box = decode(data, choose_box, fast)
    except Exception as error:  # Pillow raises many types on damaged files
        raise unfit_file(
            path,
            f"damaged or not an image ({len(data)} bytes): {error}. Replace it, or move it out of "
            "the folder; the data set's check in data_prep/ finds all such files with --full.",
        ) from error
    top, left, height, width = box
    crop = torch.from_numpy(np.ascontiguousarray(pixels[top : top + height, left : left + width]))
    resized = _resize(crop, size)
    return resized.flip(1) if mirror else resized


def decode(
    data: memoryview, choose_box: ChooseBox, fast: bool = False
) -> tuple[NDArray[np.uint8], Box]:
    """Return the pixels of an image down to at least the crop's last row, and the crop.

    The pixels are RGB, uint8 [rows, W, 3], and begin at the image's top. `data` must be writable,
    because its header is changed temporarily. The pixels lie in a buffer that the thread's next
    image will overwrite.
    """
    import simplejpeg  # here: a machine that tests kernels alone lacks it

    try:
        height, width, colourspace, subsampling = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return _decode_with_pillow(data, choose_box)
    if colourspace not in ("YCbCr", "RGB"):
        return _decode_with_pillow(data, choose_box)
    box = choose_box(height, width)
    rows = -(-(box[0] + box[2] + _MARGIN_ROWS) // _BLOCK_ROWS) * _BLOCK_ROWS
    buffer = _pixels.of(3 * width * (height + _BLOCK_ROWS))
    # a file with its end-of-image marker is not truncated
    if rows < height and subsampling in _SUBSAMPLINGS and _END_OF_IMAGE in bytes(data[-64:]):
        position = _height_position(data)
        if position is not None:
            original = bytes(data[position : position + 2])
            data[position : position + 2] = rows.to_bytes(2, "big")
            try:  # not strict: the rows left over cause a warning
                return simplejpeg.decode_jpeg(
                    data, "RGB", strict=False, buffer=buffer, fastdct=fast
                ), box
            finally:
                data[position : position + 2] = original
    try:
        return simplejpeg.decode_jpeg(data, "RGB", buffer=buffer, fastdct=fast), box
    except ValueError:
        return _decode_with_pillow(data, choose_box)


def _decode_with_pillow(data: memoryview, choose_box: ChooseBox) -> tuple[NDArray[np.uint8], Box]:
    with Image.open(io.BytesIO(data)) as image:
        pixels = np.array(image.convert("RGB"))
    return pixels, choose_box(pixels.shape[0], pixels.shape[1])


def _height_position(data: memoryview) -> int | None:
    """Return where the header of a sequential single-scan JPEG holds the image height (2 bytes).

    Return None for other kinds of JPEG. ITU-T T.81, B.2: markers are FF xx, then a length; SOF0 and
    SOF1 are sequential; SOS ends the header.
    """
    at, frame, components = 2, None, 0
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker in (0xC0, 0xC1):
            frame, components = at + 5, data[at + 9]
        elif marker == 0xDA:
            return frame if frame is not None and data[at + 4] == components else None
        elif marker == 0xFF or (0xC2 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC)):
            return None  # padding, or another coding process (progressive, arithmetic, lossless)
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


def _resize(crop: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    # [None] before permute gives exactly the strides of channels_last, so that torch resizes
    # interleaved pixels and leaves them interleaved
    planes = F.interpolate(crop[None].permute(0, 3, 1, 2), size, mode="bilinear", antialias=True)
    return planes[0].permute(1, 2, 0).contiguous()
