"""Is this folder a segmentation data set, and what is wrong with it if not?

Beyond what listing finds: masks of another size than their image, of several channels or values, splits whose masks
show no object at all, and files that cannot be read. A few pairs per split are read, or all with `full`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gallery_lib.data.images.segmentation_folder import list_pairs, load_pair, read_mask
from gallery_lib.errors import InputError

SPLITS = ("train", "val")
_SAMPLES_PER_SPLIT = 32


@dataclass(frozen=True)
class SegmentationSummary:
    """What a checked folder holds: images by split, how many were read, and which part of their pixels is object."""

    root: Path
    images: dict[str, int]
    read: int
    foreground: float

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {split}" for split, count in self.images.items())
        return f"{self.root}: {counts} images with masks; {self.read} read, all fine; {self.foreground:.0%} of their pixels are object"


def check_segmentation_folder(root: Path | str, full: bool = False) -> SegmentationSummary:
    """Check both splits of `root` and say what they hold. Raises InputError for the first thing that is wrong."""
    pairs = {split: list_pairs(root, split) for split in SPLITS}
    shares: list[float] = []
    for split, listed in pairs.items():
        chosen = listed if full else listed[:: max(1, len(listed) // _SAMPLES_PER_SPLIT)]
        with ThreadPoolExecutor() as pool:
            found = list(pool.map(lambda pair: _foreground(*pair), chosen))
        if not any(found):
            raise InputError(f"The masks in {Path(root) / split / 'masks'} are all 0 ({len(found)} read): they show no object to learn.")
        shares += found
    return SegmentationSummary(Path(root), {split: len(listed) for split, listed in pairs.items()}, len(shares), float(np.mean(shares)))


def _foreground(image: Path, mask: Path) -> float:
    """The part of the pixels that is object."""
    load_pair(image, mask, (1, 1))  # both can be read and are alike in size
    values = read_mask(mask)
    distinct = np.unique(values)
    if len(distinct) > 2 or (len(distinct) == 2 and distinct[0] != 0):
        shown = ", ".join(str(int(value)) for value in distinct[:6]) + (", …" if len(distinct) > 6 else "")
        raise InputError(f"The mask {mask} has the values {shown}; it must have 0 for the background and one other value for the object.")
    return float((values != 0).mean())
