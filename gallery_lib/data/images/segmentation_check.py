"""Check whether a folder is a segmentation data set, and say what is wrong with it.

The check goes beyond the listing. It finds masks of another size than their image, and masks of
several channels or values. It also finds splits whose masks show no object at all, and files that
cannot be read. A few pairs per split are read, or all with `full`.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gallery_lib.data.folder_walk import printable
from gallery_lib.data.images.file_check import examine
from gallery_lib.data.images.segmentation_folder import list_pairs, load_pair, read_mask
from gallery_lib.errors import InputError

SPLITS = ("train", "val")
_SAMPLES_PER_SPLIT = 32
_SHOWN = 5


@dataclass(frozen=True)
class SegmentationSummary:
    """Content of a checked folder: images by split, images read, share of object pixels."""

    root: Path
    images: dict[str, int]
    read: int
    foreground: float
    remarks: tuple[str, ...] = ()  # one line each on what is left out or unusual

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {split}" for split, count in self.images.items())
        read = f"{self.read} read, all fine; {self.foreground:.0%} of their pixels are object"
        return "\n".join(
            [f"{printable(self.root)}: {counts} images with masks; {read}", *self.remarks]
        )


def check_segmentation_folder(root: Path | str, full: bool = False) -> SegmentationSummary:
    """Check both splits of `root` and return what they hold.

    `full` reads all pairs instead of a few per split.

    Raises:
        InputError: the message names what is missing, unfit or damaged.
    """
    listed = {split: list_pairs(root, split) for split in SPLITS}
    shares: list[float] = []
    damaged: list[str] = []
    oddities: list[str] = []
    for listing in listed.values():
        pairs = (
            listing.pairs
            if full
            else listing.pairs[:: max(1, len(listing.pairs) // _SAMPLES_PER_SPLIT)]
        )
        with ThreadPoolExecutor() as pool:
            looks = list(pool.map(lambda pair: _look(*pair), pairs))
        damaged += [problem for look in looks for problem in look.problems]
        oddities += [oddity for look in looks for oddity in look.oddities]
        if not damaged and not any(look.foreground for look in looks):
            raise InputError(
                f"The masks in {printable(listing.folder / 'masks')} are all 0 ({len(looks)} "
                "read): they show no object to learn.",
                parameter="data_dir",
            )
        shares += [look.foreground for look in looks]
    if damaged:
        shown = damaged if full else damaged[:_SHOWN] + (["…"] if len(damaged) > _SHOWN else [])
        raise InputError(
            f"{len(damaged)} of {len(shares)} images and masks read in {printable(root)} are "
            "unfit:\n  " + "\n  ".join(shown),
            parameter="data_dir",
        )
    counts = {split: len(listing.pairs) for split, listing in listed.items()}
    notices = tuple(line for listing in listed.values() for line in listing.notices())
    return SegmentationSummary(
        Path(root), counts, len(shares), float(np.mean(shares)), (*notices, *oddities)
    )


@dataclass(frozen=True)
class _Look:
    """Findings about one image and its mask."""

    foreground: float = 0.0
    problems: tuple[str, ...] = ()
    oddities: tuple[str, ...] = ()


def _look(image: Path, mask: Path) -> _Look:
    """Read an image and its mask as training does, then look for what training would not notice."""
    try:
        load_pair(image, mask, (1, 1))
        foreground = float((read_mask(mask) != 0).mean())
    except InputError as error:
        return _Look(problems=(str(error),))
    findings = {path: examine(path) for path in (image, mask)}
    return _Look(
        foreground,
        tuple(
            f"{printable(path)}: {finding.damage}"
            for path, finding in findings.items()
            if finding.damage
        ),
        tuple(
            f"{printable(path)} {finding.oddity}"
            for path, finding in findings.items()
            if finding.oddity
        ),
    )
