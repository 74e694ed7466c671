"""Data set over a folder of photographs and masks, real or mock.

The layout is `ROOT/train/images/NAME.jpg` (or another usual ending) with
`ROOT/train/masks/NAME.png`, and the same in `val/`; NAME may lie in a folder below. A mask
has the size of its image and one channel: 0 for the background, one other value for the object. A
worker turns both into uint8 at the training size; `finish_batch` makes the float batch on the
device. Flips depend on (seed, epoch, index) alone. The whole image is resized, nothing is cropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import ExifTags, Image

from gallery_lib.data.folders import Faults, LeftOut, existing, printable, some, unfit_file, walk
from gallery_lib.data.images import image_folder
from gallery_lib.data.images.decode import Box, load
from gallery_lib.data.images.listing import EXTENSIONS, nothing_there
from gallery_lib.data.loading import shared_memory
from gallery_lib.data.seeded_items import SeededItems

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
        return self.left_out.notice(self.folder)


def list_pairs(root: Path | str, split: str, faults: Faults | None = None) -> Pairs:
    """Return the images of `split` with their masks.

    `faults` notes images without a mask of their own, which are left out then.

    Raises:
        InputError: the message says what is missing and where.
    """
    make = f"Mock data, in a folder of its own: {MAKE_COMMAND}"
    hint = f"Give a folder with train/ and val/ in it. {make}"
    expected = f"{split}/images/NAME.jpg and {split}/masks/NAME.png"
    for kind in ("images", "masks"):
        folder = existing(root, "data folder", hint, f"{split}/{kind}", expected).parent
    left_out = LeftOut()
    by_stem: dict[str, dict[str, str]] = {}
    noted = Faults() if faults is None else faults
    for kind, endings in {"images": EXTENSIONS, "masks": (MASK_EXTENSION,)}.items():
        names, unread = walk(folder / kind, endings)
        left_out.update(unread, f"{kind}/")
        stems = by_stem.setdefault(kind, {})
        for name in names:
            other = stems.setdefault(str(Path(name).with_suffix("")), name)
            if other != name:
                noted.add(
                    f"{printable(other)} and {printable(name)} in {printable(folder / kind)} would "
                    "belong to the same file. Give them different names."
                )
    images, masks = by_stem["images"], by_stem["masks"]
    if not images:
        lacks = f"holds no images ({', '.join(EXTENSIONS)})"
        raise nothing_there(folder / "images", lacks, left_out, MAKE_COMMAND)
    for stem in masks.keys() - images.keys():
        left_out.add("a mask without an image", f"masks/{masks[stem]}")
    if lacking := [stem for stem in images if stem not in masks]:
        others = f" ({some(images[stem] for stem in lacking)})" if len(lacking) > 1 else ""
        noted.add(
            f"{len(lacking)} of {len(images)} images in {printable(folder / 'images')} have no "
            f"mask{others}: {printable(images[lacking[0]])} needs "
            f"{printable(folder / 'masks' / lacking[0])}.png. Add the masks, or move these images "
            "out of the folder."
        )
    if faults is None:
        noted.refuse()
    pairs = [
        (folder / "images" / name, folder / "masks" / masks[stem])
        for stem, name in images.items()
        if stem in masks
    ]
    return Pairs(folder, pairs, left_out)


def read_mask(path: Path) -> tuple[NDArray[np.bool_], int]:
    """Return where the mask's object is [H, W], and its EXIF orientation; refuse other values."""
    try:
        with Image.open(path) as image:
            channels, values, orientation = image.getbands(), np.asarray(image), _turn(image)
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
    return values != 0, orientation


def _turn(image: Image.Image) -> int:
    """Return how a viewer is to turn or mirror the stored pixels; 1 is not at all."""
    orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    return orientation if orientation in range(2, 9) else 1


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
    shows, turn = read_mask(mask)
    with Image.open(image) as opened:
        turn_of_image = _turn(opened)
    if turn != turn_of_image:
        raise unfit_file(
            mask,
            f"EXIF orientation {turn}, and {turn_of_image} for its image {printable(image)}. "
            "Pixels are read as they are stored, so the two do not lie on each other. Turn the "
            "pixels themselves (PIL.ImageOps.exif_transpose), or remove the orientation.",
        )
    if shows.shape != original[-1]:
        size_of_mask, size_of_image = ("×".join(map(str, s)) for s in (shows.shape, original[-1]))
        problem = f"{size_of_mask} pixels, and its image {printable(image)} has {size_of_image}."
        raise unfit_file(mask, problem)
    values = shows.astype(np.uint8)
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
        listed = list_pairs(root, split)
        self.pairs, self.notices, self.size = listed.pairs, listed.notices(), size

    def __len__(self) -> int:
        return len(self.pairs)

    def _item(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image, mask = load_pair(*self.pairs[index], self.size, fast=self.train)
        if not self.train:
            return image, mask
        rng = self.rng(index)
        axes = [axis for axis in (0, 1) if rng.random() < 0.5]
        return image.flip(axes), mask.flip(axes)
