"""The data set over a folder of photographs and masks, real or mock.

`ROOT/train/images/NAME.jpg` with `ROOT/train/masks/NAME.png`, and the same in `val/`. A mask has the size of its image
and one channel: 0 for the background, one other value for the object. A worker turns both into uint8 at the training
size; `finish_batch` makes the float batch on the device. Flips depend on (seed, epoch, index) alone. It does not
crop: the whole image is resized.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import Dataset

from gallery_lib.data import shared_batches
from gallery_lib.data.images import image_folder
from gallery_lib.data.images.decode import Box, load
from gallery_lib.data.item_random import of_item
from gallery_lib.errors import InputError

IMAGE_EXTENSIONS = (".jpg", ".jpeg")
MAKE_COMMAND = "python data_prep/mock_segmentation.py --out {root}"


def finish_batch(
    batch: Sequence[torch.Tensor], memory_format: torch.memory_format = torch.contiguous_format
) -> tuple[torch.Tensor, torch.Tensor]:
    """(images uint8 [N, H, W, 3], masks uint8 [N, H, W]) → (normalised float [N, 3, H, W], int64 [N, H, W]), where they are."""
    images, masks = image_folder.finish_batch(batch, memory_format)
    return images, masks.long()


def list_pairs(root: Path | str, split: str) -> list[tuple[Path, Path]]:
    """(image, mask) files of `split`, sorted by name. Raises InputError that says what is missing and where."""
    root = Path(root).expanduser().absolute()
    make = f"Mock data: {MAKE_COMMAND.format(root=root)}"
    if not root.is_dir():
        what = "is a file" if root.exists() else "does not exist"
        raise InputError(f"The data folder {root} {what}. Give a folder with train/ and val/ in it. {make}")
    for kind in ("images", "masks"):
        if not (root / split / kind).is_dir():
            found = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
            holds = f"It holds {', '.join(found[:5])}." if found else "It holds no folders."
            raise InputError(
                f"The data folder {root} has no {split}/{kind}/ in it; expected {split}/images/NAME.jpg and {split}/masks/NAME.png. "
                f"{holds} {make}"
            )
    images = sorted(p for p in (root / split / "images").iterdir() if p.suffix.lower() in IMAGE_EXTENSIONS and p.name[0] != ".")
    if not images:
        raise InputError(f"{root / split / 'images'} holds no images ({', '.join(IMAGE_EXTENSIONS)}). {make}")
    masks = {p.name for p in (root / split / "masks").iterdir()}
    if lacking := [image for image in images if f"{image.stem}.png" not in masks]:
        raise InputError(
            f"{len(lacking)} of {len(images)} images in {root / split / 'images'} have no mask: {lacking[0].name} needs "
            f"{root / split / 'masks' / lacking[0].stem}.png. Add or remove them."
        )
    return [(image, root / split / "masks" / f"{image.stem}.png") for image in images]


def read_mask(path: Path) -> NDArray[np.generic]:
    """The mask's own values [H, W]. Raises InputError, naming the file, when it cannot be read or is not one channel."""
    try:
        with Image.open(path) as image:
            channels, values = image.getbands(), np.asarray(image)
    except Exception as error:  # Pillow raises many types on damaged files
        raise InputError(f"Cannot read the mask {path}: {error}. Replace it, or remove it and its image.") from error
    if len(channels) != 1:
        raise InputError(
            f"The mask {path} has {len(channels)} channels ({', '.join(channels)}); it must have one, with 0 where nothing is."
        )
    return values


def load_pair(image: Path, mask: Path, size: tuple[int, int], *, fast: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Image uint8 [*size, 3] and mask uint8 [*size] of 0 and 1. Raises InputError that names a damaged or unfitting file."""
    original: list[tuple[int, int]] = []

    def whole(height: int, width: int) -> Box:
        original.append((height, width))
        return 0, 0, height, width

    pixels = load(image, whole, size, fast=fast)
    values = (read_mask(mask) != 0).astype(np.uint8)
    if values.shape != original[-1]:
        of = "×".join
        raise InputError(f"The mask {mask} is {of(map(str, values.shape))} pixels, and its image {image} is {of(map(str, original[-1]))}.")
    if values.shape != size:
        values = np.array(Image.fromarray(values).resize(size[::-1], Image.Resampling.NEAREST))
    return pixels, torch.from_numpy(values)


class SegmentationFolder(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Map-style data set: item i is (image uint8 [H, W, 3], mask uint8 [H, W] of 0 and 1), `size` being (H, W) in pixels.

    `train` mirrors half of the items left to right and half of them top to bottom. Call `set_epoch` before each
    epoch; it reaches workers that already run, too. Raises InputError for a folder that is none such; reading an item
    raises InputError that names a damaged file.
    """

    finish_batch = staticmethod(finish_batch)
    collate = staticmethod(shared_batches.collate)

    def __init__(self, root: Path | str, split: str, size: tuple[int, int], train: bool, seed: int = 0) -> None:
        self.pairs = list_pairs(root, split)
        self.size, self.train, self.seed = size, train, seed
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is outside a data set of {len(self)} images")
        index %= len(self)
        image, mask = load_pair(*self.pairs[index], self.size, fast=self.train)
        if not self.train:
            return image, mask
        rng = of_item(self.seed, int(self._epoch), index)
        axes = [axis for axis in (0, 1) if rng.random() < 0.5]
        return image.flip(axes), mask.flip(axes)

    def set_epoch(self, epoch: int) -> None:
        """Draw the augmentation of `epoch` from now on, also in DataLoader workers that live on between epochs."""
        self._epoch.fill_(epoch)
