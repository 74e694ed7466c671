"""Data set over a folder of photographs and masks, real or mock.

The layout is `ROOT/train/images/NAME.jpg` (or another usual ending) with
`ROOT/train/masks/NAME.png`, and the same in `val/`; NAME may lie in a folder below. A mask
has the size of its image and one channel: 0 for the background, one other value for the object. A
worker turns both into uint8 at the training size; `finish_batch` makes the float batch on the
device. Flips depend on (seed, epoch, index) alone. The whole image is resized, nothing is cropped.
Pixels are read as they are stored, not as EXIF turns them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from gallery_lib.data.folders import printable, some, unfit_file
from gallery_lib.data.images import image_folder
from gallery_lib.data.images.decode import Box, load
from gallery_lib.data.images.listing import list_pairs
from gallery_lib.data.loading import shared_memory
from gallery_lib.data.seeded_items import SeededItems


def finish_batch(
    batch: Sequence[torch.Tensor], memory_format: torch.memory_format = torch.contiguous_format
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn a uint8 batch into (normalised float [N, 3, H, W], int64 [N, H, W]) on its own device.

    `batch` is (images uint8 [N, H, W, 3], masks uint8 [N, H, W]).
    """
    images, masks = image_folder.finish_batch(batch, memory_format)
    return images, masks.long()


def read_mask(path: Path) -> NDArray[np.uint8]:
    """Return 1 where the mask's object is and else 0, uint8 [H, W]; refuse other values."""
    try:
        with Image.open(path) as image:
            channels, values = image.getbands(), np.asarray(image)
    except Exception as error:  # Pillow raises many types on damaged files
        problem = f"no mask: {error}. Replace it, or move it and its image out of the folder."
        raise unfit_file(path, problem) from error
    if len(channels) != 1:
        problem = f"{len(channels)} channels; a mask must have one, with 0 where nothing is."
        raise unfit_file(path, problem)
    if not ((values == 0) | (values == values.max())).all():
        shown = some(str(value) for value in np.unique(values))
        problem = f"the values {shown}; a mask must have 0 for the background and one other value."
        raise unfit_file(path, problem)
    return (values != 0).astype(np.uint8)


def load_pair(
    image: Path, mask: Path, size: tuple[int, int], *, fast: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the image, uint8 [*size, 3], and its mask, uint8 [*size] of 0 and 1.

    `fast` takes libjpeg's fast inverse DCT for the image.

    Raises:
        InputError: the message names a damaged or unfitting file.
    """
    original: list[tuple[int, int]] = []

    def whole(height: int, width: int) -> Box:
        original.append((height, width))
        return 0, 0, height, width

    pixels = load(image, whole, size, fast=fast)
    values = read_mask(mask)
    if values.shape != original[-1]:
        size_of_mask, size_of_image = ("×".join(map(str, s)) for s in (values.shape, original[-1]))
        problem = f"{size_of_mask} pixels, and its image {printable(image)} has {size_of_image}."
        raise unfit_file(mask, problem)
    if values.shape != size:
        values = np.array(Image.fromarray(values).resize(size[::-1], Image.Resampling.NEAREST))
    return pixels, torch.from_numpy(values)


class SegmentationFolder(SeededItems[tuple[torch.Tensor, torch.Tensor]]):
    """Map-style data set whose item i is (image uint8 [H, W, 3], mask uint8 [H, W] of 0 and 1).

    `size` is (H, W) in pixels. `train` mirrors half of the items left to right and half of them top
    to bottom. Reading an item raises InputError that names a damaged file.

    Raises:
        InputError: for a folder of another layout.
    """

    finish_batch = staticmethod(finish_batch)
    collate = staticmethod(shared_memory.collate)

    def __init__(
        self, root: Path | str, split: str, size: tuple[int, int], train: bool, seed: int = 0
    ) -> None:
        super().__init__(train, seed)
        self.pairs, self.notices = list_pairs(root, split)
        self.size = size

    def __len__(self) -> int:
        return len(self.pairs)

    def _item(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image, mask = load_pair(*self.pairs[index], self.size, fast=self.train)
        if not self.train:
            return image, mask
        rng = self.rng(index)
        axes = [axis for axis in (0, 1) if rng.random() < 0.5]
        return image.flip(axes), mask.flip(axes)
