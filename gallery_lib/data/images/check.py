"""Check whether a folder is a data set of images, and say what is wrong with it.

A run reports and refuses the same findings of the listing. The check adds that files can be read: a
few, or every one to its end with `full`. Training is less strict: it takes what torchvision's
loader takes, also pixels that libjpeg or Pillow make up for damaged data. Of BMP, PPM and
uncompressed TIFF, which have no redundancy, only truncation is found. The check changes nothing.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from PIL import Image

from gallery_lib.console.progress import Progress
from gallery_lib.data.folders import SPLITS, Faults, Summary, printable
from gallery_lib.data.images.listing import Listing, list_pairs, list_split
from gallery_lib.errors import InputError

T = TypeVar("T")

_SAMPLES_PER_CLASS = 2
_SAMPLES_PER_SPLIT = 32
_SHOWN = 5
# files examined before the next ones are submitted: memory does not grow with the folder
_CHUNK = 1024


def check_image_folder(root: Path | str, full: bool = False) -> Summary:
    """Check both splits of the folder `root` and return what they hold.

    A thread pool decodes a few images per class, or every one with `full`. InputError names what is
    missing, empty, inconsistent or damaged, where, and what to do.
    """
    root = Path(root).expanduser()
    listings: dict[str, Listing] = {}
    faults = Faults()
    for name in SPLITS:
        train = listings.get("train")
        with faults.noted():
            listings[name] = list_split(root, name, train.classes if train else None, faults)
    paths = [
        listing.folder / name / file
        for listing in listings.values()
        for name, files in zip(listing.classes, listing.images, strict=True)
        for file in _some_of(files, None if full else _SAMPLES_PER_CLASS)
    ]
    _look_at(paths, _damage, faults, root, full)
    faults.refuse()
    classes = len(listings["train"].classes)
    images = (f"{sum(map(len, one.images))} {name}" for name, one in listings.items())
    return Summary(
        root,
        f"{classes} classes, {', '.join(images)} images; {len(paths)} read",
        tuple(notice for listing in listings.values() for notice in listing.notices()),
    )


def check_segmentation_folder(root: Path | str, full: bool = False) -> Summary:
    """Check both splits of `root` and return what they hold.

    Besides damage, the check finds masks of another size than their image, and masks of several
    channels or values. It reads a few pairs per split, or all with `full`. InputError names what is
    missing, unfit or damaged.
    """
    # here, since it imports torch, which takes seconds
    from gallery_lib.data.images.segmentation_folder import load_pair

    def look(pair: tuple[Path, Path]) -> list[str]:
        """Read a pair as training does, then find what training would not notice."""
        try:
            load_pair(*pair, (1, 1))
        except InputError as error:
            return [str(error)]
        return [line for path in pair for line in _damage(path)]

    faults, root, counts, read = Faults(), Path(root), [], 0
    notices: list[str] = []
    for split in SPLITS:
        with faults.noted():
            listed, lines = list_pairs(root, split, faults)
            pairs = _some_of(listed, None if full else _SAMPLES_PER_SPLIT)
            _look_at(pairs, look, faults, root / split, full)
            read += len(pairs)
            counts.append(f"{len(listed)} {split}")
            notices += lines
    faults.refuse()
    return Summary(root, f"{', '.join(counts)} images with masks; {read} read", tuple(notices))


def _some_of(items: Sequence[T], most: int | None) -> Sequence[T]:
    return items[:: max(1, len(items) // most)][:most] if most else items


def _look_at(
    items: Sequence[T],
    look: Callable[[T], list[str]],
    faults: Faults,
    folder: Path,
    full: bool,
) -> None:
    damaged: list[str] = []
    with ThreadPoolExecutor() as pool, Progress(enabled=len(items) > _CHUNK) as bar:
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


def _damage(path: Path) -> list[str]:
    return [f"{printable(path)}: {why}"] if (why := examine(path)) else []


def examine(path: Path) -> str | None:
    """Decode all of an image file and return damage that changes its pixels, or None."""
    import simplejpeg

    try:
        data = path.read_bytes()
        with Image.open(io.BytesIO(data)) as image:
            if image.format in ("JPEG", "MPO"):  # MPO: several, as cameras write it
                try:
                    colours = simplejpeg.decode_jpeg_header(data)[2]
                    target = {"Gray": "GRAY", "CMYK": "CMYK", "YCCK": "CMYK"}.get(colours, "RGB")
                    simplejpeg.decode_jpeg(data, target, strict=True)
                except ValueError as error:
                    image.convert("RGB")  # Pillow names what it cannot read
                    return f"decodes with a warning: {error}"
                return None
            image.convert("RGB")
        if image.format == "PNG":
            with Image.open(io.BytesIO(data)) as image:
                image.verify()  # its checksums
    except Exception as error:  # Pillow raises many types on damaged files
        reason = re.sub(r" *<_io\.BytesIO object at 0x[0-9a-f]+>", " as an image", str(error))
        return " ".join(reason.split()) or type(error).__name__
    return None
