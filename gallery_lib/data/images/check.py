"""Check whether a folder is a data set of images, and say what is wrong with it.

A run reports and refuses the same findings of the listing. The check adds that files can be read: a
few, or every one to its end with `full`. Training is less strict: it takes what torchvision's
loader takes, also pixels that libjpeg or Pillow make up for damaged data. Of BMP, PPM and
uncompressed TIFF, which have no redundancy, only truncation is found. The check changes nothing.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from PIL import Image

from gallery_lib.console.progress import Progress, busy
from gallery_lib.data.folders import Faults, Summary, printable
from gallery_lib.data.images import jpeg
from gallery_lib.data.images.listing import SPLITS, Listing, list_split
from gallery_lib.errors import InputError

T = TypeVar("T")

_SAMPLES_PER_CLASS = 2
_SAMPLES_PER_SPLIT = 32
_SHOWN = 5
# files examined before the next ones are submitted: memory does not grow with the folder
_CHUNK = 1024


def check_image_folder(
    root: Path | str, split: str | None = None, full: bool = False, *, progress: bool = False
) -> Summary:
    """Check the folder `root` (only `split` of it, if given) and return what it holds.

    A thread pool decodes a few images per class, or every one with `full`. InputError names what is
    missing, empty, inconsistent or damaged, where, and what to do.
    """
    root = Path(root).expanduser()
    listings: dict[str, Listing] = {}
    faults = Faults()
    with busy("listing the folder") if progress else contextlib.nullcontext():
        for name in SPLITS if split is None else (split,):
            train = listings.get("train")
            with faults.noted():
                listings[name] = list_split(root, name, train.classes if train else None, faults)
    paths = [path for listing in listings.values() for path in _chosen(listing, full)]
    _look_at(paths, _damage, faults, root, full, progress)
    faults.refuse()
    classes = len(next(iter(listings.values())).classes)
    images = (f"{sum(map(len, one.images))} {name}" for name, one in listings.items())
    return Summary(
        root,
        f"{classes} classes, {', '.join(images)} images; {len(paths)} read",
        tuple(notice for listing in listings.values() for notice in listing.notices()),
    )


def _chosen(listing: Listing, full: bool) -> list[Path]:
    paths = []
    for name, files in zip(listing.classes, listing.images, strict=True):
        step = 1 if full else max(1, len(files) // _SAMPLES_PER_CLASS)
        most = None if full else _SAMPLES_PER_CLASS
        paths += [listing.folder / name / file for file in files[::step][:most]]
    return paths


def check_segmentation_folder(root: Path | str, full: bool = False) -> Summary:
    """Check both splits of `root` and return what they hold.

    Besides damage, the check finds masks of another size than their image, masks of several
    channels or values, and splits whose masks show no object. It reads a few pairs per split, or
    all with `full`. InputError names what is missing, unfit or damaged.
    """
    # here, since it imports torch, which takes seconds
    from gallery_lib.data.images.segmentation_folder import list_pairs, load_pair, read_mask

    faults, root = Faults(), Path(root)
    listed = {}
    for split in SPLITS:
        with faults.noted():
            listed[split] = list_pairs(root, split, faults)
    read = 0
    for listing in listed.values():
        pairs = listing.pairs[:: 1 if full else max(1, len(listing.pairs) // _SAMPLES_PER_SPLIT)]
        shows_object: list[bool] = []

        def look(pair: tuple[Path, Path], shows_object: list[bool] = shows_object) -> list[str]:
            """Read a pair as training does, then find what training would not notice."""
            try:
                load_pair(*pair, (1, 1))
                shows_object.append(bool(read_mask(pair[1])[0].any()))
            except InputError as error:
                return [str(error)]
            return _damage(*pair)

        _look_at(pairs, look, faults, listing.folder, full)
        if shows_object and not any(shows_object):
            faults.add(
                f"The masks in {printable(listing.folder / 'masks')} are all 0 "
                f"({len(shows_object)} read): they show no object to learn."
            )
        read += len(pairs)
    faults.refuse()
    images = ", ".join(f"{len(listing.pairs)} {split}" for split, listing in listed.items())
    notices = tuple(line for listing in listed.values() for line in listing.notices())
    return Summary(root, f"{images} images with masks; {read} read", notices)


def _look_at(
    items: Sequence[T],
    look: Callable[[T], list[str]],
    faults: Faults,
    folder: Path,
    full: bool,
    progress: bool = False,
) -> None:
    damaged: list[str] = []
    with ThreadPoolExecutor() as pool, Progress(enabled=progress and len(items) > _CHUNK) as bar:
        for start in range(0, len(items), _CHUNK):
            bar.show("reading", count=start, total=len(items), unit="images")
            for problems in pool.map(look, items[start : start + _CHUNK]):
                damaged += problems
    if damaged:
        named = damaged if full else damaged[:_SHOWN] + (["…"] if len(damaged) > _SHOWN else [])
        faults.add(
            f"{len(damaged)} of {len(items)} images read in {printable(folder)} are unreadable, "
            "damaged or unfit. Replace them, or move them out of the folder:\n  "
            + "\n  ".join(named)
        )


def _damage(*paths: Path) -> list[str]:
    damage = {path: examine(path) for path in paths}
    return [f"{printable(path)}: {why}" for path, why in damage.items() if why]


def examine(path: str | os.PathLike[str]) -> str | None:
    """Decode all of an image file and return damage that changes its pixels, or None."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if not data:
        return "is empty"
    try:
        with Image.open(io.BytesIO(data)) as image:
            is_jpeg = image.format in ("JPEG", "MPO")  # MPO: several, as cameras write it
            warning = _jpeg_warning(data) if is_jpeg else None
            if warning or not is_jpeg:
                image.convert("RGB")
        if image.format == "PNG":
            with Image.open(io.BytesIO(data)) as image:
                image.verify()  # its checksums
    except Exception as error:  # Pillow raises many types on damaged files
        return _reason(error)
    return warning


def _reason(error: Exception) -> str:
    text = re.sub(r" *<_io\.BytesIO object at 0x[0-9a-f]+>", " as an image", str(error))
    return " ".join(text.split()) or type(error).__name__


def _jpeg_warning(data: bytes) -> str | None:
    """Return the warning with which libjpeg goes on decoding; None also without simplejpeg."""
    simplejpeg = jpeg.simplejpeg
    if simplejpeg is None:
        jpeg.announce()
        return None
    try:
        colourspace = simplejpeg.decode_jpeg_header(data)[2]
        target = {"Gray": "GRAY", "CMYK": "CMYK", "YCCK": "CMYK"}.get(colourspace, "RGB")
        simplejpeg.decode_jpeg(data, target, strict=True)
    except ValueError as error:
        return f"decodes with a warning: {_reason(error)}"
    return None
