"""Check whether a folder is an ImageNet-like data set, and say what is wrong with it.

The layout is `ROOT/train/CLASS/…` and `ROOT/val/CLASS/…`. A run reports and refuses the same
findings of the listing (folder_listing.py). The check adds that images can be read: a few per
class, or every one, to its end, with `full`. It compares nothing with a manifest
(mock_manifest.verify does that) and changes nothing.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from gallery_lib.console.progress import Progress, busy
from gallery_lib.data.folder_walk import printable
from gallery_lib.data.images.file_check import Finding, examine
from gallery_lib.data.images.folder_listing import SPLITS, Listing, list_split
from gallery_lib.errors import InputError

_SAMPLES_PER_CLASS = 2
_SHOWN = 5
_PATIENCE_SECONDS = 1.0
# files examined before the next ones are submitted: memory does not grow with the folder
_CHUNK = 1024


@dataclass(frozen=True)
class FolderSummary:
    """Content of a checked folder: classes, images by split, and images that were decoded.

    `notices` are the lines that a run prints about classes and about what is left out. `oddities`
    has one line per unusual file whose pixels are unchanged.
    """

    root: Path
    classes: int
    images: dict[str, int] = field(default_factory=dict)
    decoded: int = 0
    notices: tuple[str, ...] = ()
    oddities: tuple[str, ...] = ()

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {split}" for split, count in self.images.items())
        fine = "all fine" if not self.oddities else f"none damaged, {len(self.oddities)} unusual"
        first = (
            f"{printable(self.root)}: {self.classes} classes, {counts} images; "
            f"{self.decoded} read, {fine}"
        )
        return "\n".join([first, *self.notices, *self.oddities])


def check_image_folder(
    root: Path | str, split: str | None = None, full: bool = False, *, progress: bool = False
) -> FolderSummary:
    """Check the folder `root` (only `split` of it, if given) and return what it holds.

    A thread pool decodes a few images per class, or every one with `full`. `progress` shows how far
    the check of a large folder is.

    Raises:
        InputError: the message names what is missing, empty, inconsistent or damaged, where, and
            what to do.
    """
    root = Path(root).expanduser()
    listings: dict[str, Listing] = {}
    with busy("listing the folder", _PATIENCE_SECONDS) if progress else contextlib.nullcontext():
        for name in SPLITS if split is None else (split,):
            train = listings.get("train")
            listings[name] = list_split(root, name, train.classes if train else None)
    paths = [path for listing in listings.values() for path in _chosen(listing, full)]
    damaged, oddities = [], []
    with ThreadPoolExecutor() as pool, Progress(enabled=progress and len(paths) > _CHUNK) as bar:
        for start in range(0, len(paths), _CHUNK):
            bar.show("reading", count=start, total=len(paths), unit="images")
            chunk = paths[start : start + _CHUNK]
            findings: list[Finding] = list(pool.map(examine, chunk))
            for path, finding in zip(chunk, findings, strict=True):
                if finding.damage:
                    damaged.append(f"{printable(path)}: {finding.damage}")
                if finding.oddity:
                    oddities.append(f"{printable(path)} {finding.oddity}")
    if damaged:
        named = damaged if full else damaged[:_SHOWN] + (["…"] if len(damaged) > _SHOWN else [])
        raise InputError(
            f"{len(damaged)} of {len(paths)} images read in {printable(root)} are unreadable or "
            "damaged. "
            "Replace them, or move them out of the folder:\n  " + "\n  ".join(named),
            parameter="data_dir",
        )
    return FolderSummary(
        root,
        len(next(iter(listings.values())).classes),
        {name: sum(map(len, listing.images)) for name, listing in listings.items()},
        len(paths),
        tuple(notice for listing in listings.values() for notice in listing.notices()),
        tuple(oddities),
    )


def _chosen(listing: Listing, full: bool) -> list[Path]:
    """Return the files of the split that the check decodes."""
    paths = []
    for name, files in zip(listing.classes, listing.images, strict=True):
        step = 1 if full else max(1, len(files) // _SAMPLES_PER_CLASS)
        most = None if full else _SAMPLES_PER_CLASS
        paths += [listing.folder / name / file for file in files[::step][:most]]
    return paths
