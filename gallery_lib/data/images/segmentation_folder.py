"""Data set over a folder of photographs and masks, real or mock.

The layout is `ROOT/train/images/NAME.jpg` (or another usual ending) with
`ROOT/train/masks/NAME.png`, and the same in `val/`. Folders below these are not searched. A mask
has the size of its image and one channel: 0 for the background, one other value for the object. A
worker turns both into uint8 at the training size; `finish_batch` makes the float batch on the
device. Flips depend on (seed, epoch, index) alone. The whole image is resized, and nothing is
cropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import Dataset

from gallery_lib.data.folder_walk import (
    HIDDEN,
    OTHER_ENDING,
    LeftOut,
    is_folder,
    printable,
    scan,
    some,
    unfit,
)
from gallery_lib.data.images import image_folder
from gallery_lib.data.images.decode import Box, load
from gallery_lib.data.images.folder_listing import EXTENSIONS
from gallery_lib.data.loading import shared_memory
from gallery_lib.data.loading.item_random import of_item
from gallery_lib.errors import InputError

MASK_EXTENSION = ".png"
MAKE_COMMAND = "python3 data_prep/mock_segmentation.py"


def finish_batch(
    batch: Sequence[torch.Tensor], memory_format: torch.memory_format = torch.contiguous_format
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn a uint8 batch into (normalised float [N, 3, H, W], int64 [N, H, W]) on its own device.

    `batch` is (images uint8 [N, H, W, 3], masks uint8 [N, H, W]).
    """
    images, masks = image_folder.finish_batch(batch, memory_format)
    return images, masks.long()


@dataclass(frozen=True)
class Pairs:
    """Pairs of image and mask files of one split, sorted by name, and what is not read."""

    folder: Path
    pairs: list[tuple[Path, Path]]
    left_out: LeftOut

    def notices(self) -> tuple[str, ...]:
        """Return what a user should know about the split, one line each."""
        return (f"left out of {printable(self.folder)}: {self.left_out}",) if self.left_out else ()


def list_pairs(root: Path | str, split: str) -> Pairs:
    """Return the images of `split` with their masks.

    Raises:
        InputError: the message says what is missing and where.
    """
    root = Path(root).expanduser().absolute()
    make = f"Mock data, in a folder of its own: {MAKE_COMMAND}"
    _refuse_missing_folders(root, split, make)
    folder, left_out = root / split, LeftOut()
    images = _files(folder, "images", EXTENSIONS, left_out)
    masks = _files(folder, "masks", (MASK_EXTENSION,), left_out)
    if not images:
        holds = f" It holds {left_out}." if left_out else ""
        raise InputError(
            f"{printable(folder / 'images')} holds no images ({', '.join(EXTENSIONS)}).{holds} "
            f"{make}",
            parameter="data_dir",
        )
    by_stem: dict[str, Path] = {}
    for image in images:
        if (other := by_stem.setdefault(image.stem, image)) is not image:
            raise InputError(
                f"{printable(other.name)} and {printable(image.name)} in "
                f"{printable(folder / 'images')} would share one mask. Give them different names.",
                parameter="data_dir",
            )
    mask_of = {mask.stem: mask for mask in masks}
    if lacking := [image for image in images if image.stem not in mask_of]:
        raise InputError(
            f"{len(lacking)} of {len(images)} images in {printable(folder / 'images')} have no "
            f"mask: {printable(lacking[0].name)} needs "
            f"{printable(folder / 'masks' / lacking[0].stem)}.png. Add the masks, or move these "
            "images out of the folder.",
            parameter="data_dir",
        )
    for stem, mask in mask_of.items():
        if stem not in by_stem:
            left_out.add("a mask without an image", f"masks/{mask.name}")
    return Pairs(folder, [(image, mask_of[image.stem]) for image in images], left_out)


def _refuse_missing_folders(root: Path, split: str, make: str) -> None:
    """Raise InputError unless `root` has folders for the images and for the masks of `split`."""
    try:
        if not root.is_dir():
            what = "is a file" if root.exists() else "does not exist"
            raise InputError(
                f"The data folder {printable(root)} {what}. Give a folder with train/ and val/ in "
                f"it. {make}",
                parameter="data_dir",
            )
        lacking_folder = next(
            (kind for kind in ("images", "masks") if not (root / split / kind).is_dir()), None
        )
    except OSError as error:
        raise InputError(
            f"Cannot read the data folder {printable(root)}: {error.strerror}.",
            parameter="data_dir",
        ) from error
    if lacking_folder:
        names = [entry.name for entry in scan(root) if is_folder(entry)]
        holds = f"It holds {some(names)}." if names else "It holds no folders."
        raise InputError(
            f"The data folder {printable(root)} has no {split}/{lacking_folder}/ in it; expected "
            f"{split}/images/NAME.jpg and {split}/masks/NAME.png. {holds} {make}",
            parameter="data_dir",
        )


def _files(folder: Path, kind: str, endings: tuple[str, ...], left_out: LeftOut) -> list[Path]:
    """Return the files of `folder`/`kind` with one of `endings`, sorted by name.

    Other entries are counted in `left_out`.
    """
    files = []
    for entry in scan(folder / kind):
        if entry.name.startswith("."):
            reason: str | None = HIDDEN
        elif is_folder(entry):
            reason = "a folder"
        else:
            reason = unfit(entry) if entry.name.lower().endswith(endings) else OTHER_ENDING
        if reason:
            left_out.add(reason, f"{kind}/{entry.name}")
        else:
            files.append(Path(entry.path))
    return files


def read_mask(path: Path) -> NDArray[np.generic]:
    """Return the mask's own values [H, W], which are 0 and at most one other.

    Raises:
        InputError: naming the file, when it cannot be read, is not one channel or has other values.
    """
    try:
        with Image.open(path) as image:
            channels, values = image.getbands(), np.asarray(image)
    except Exception as error:  # Pillow raises many types on damaged files
        raise InputError(
            f"Cannot read the mask {printable(path)}: {error}. Replace it, or move it and its "
            "image out of the folder.",
            parameter=str(path),
        ) from error
    if len(channels) != 1:
        raise InputError(
            f"The mask {printable(path)} has {len(channels)} channels ({', '.join(channels)}); it "
            "must have one, with 0 where nothing is.",
            parameter=str(path),
        )
    if not ((values == 0) | (values == values.max())).all():
        distinct = np.unique(values)
        shown = ", ".join(str(int(value)) for value in distinct[:6]) + (
            ", …" if len(distinct) > 6 else ""
        )
        raise InputError(
            f"The mask {printable(path)} has the values {shown}; it must have 0 for the "
            "background and one other value for the object.",
            parameter=str(path),
        )
    return values


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
    values = (read_mask(mask) != 0).astype(np.uint8)
    if values.shape != original[-1]:
        of = "×".join
        raise InputError(
            f"The mask {printable(mask)} is {of(map(str, values.shape))} pixels, "
            f"and its image {printable(image)} is {of(map(str, original[-1]))}.",
            parameter=str(mask),
        )
    if values.shape != size:
        values = np.array(Image.fromarray(values).resize(size[::-1], Image.Resampling.NEAREST))
    return pixels, torch.from_numpy(values)


class SegmentationFolder(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Map-style data set whose item i is (image uint8 [H, W, 3], mask uint8 [H, W] of 0 and 1).

    `size` is (H, W) in pixels. `train` mirrors half of the items left to right and half of them top
    to bottom. Call `set_epoch` before each epoch; workers that already run see the new epoch too.
    Reading an item raises InputError that names a damaged file.

    Raises:
        InputError: for a folder of another layout.
    """

    finish_batch = staticmethod(finish_batch)
    collate = staticmethod(shared_memory.collate)

    def __init__(
        self, root: Path | str, split: str, size: tuple[int, int], train: bool, seed: int = 0
    ) -> None:
        listed = list_pairs(root, split)
        self.pairs, self.notices = listed.pairs, listed.notices()
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
        """Draw the augmentation of `epoch` from now on, also in persistent DataLoader workers."""
        self._epoch.fill_(epoch)
