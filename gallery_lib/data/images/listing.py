"""List the images of a folder, by class or with their masks, and check that they can be read.

`list_split` reads ImageNet's layout, `list_pairs` that of segmentation. torch, which takes seconds,
stays out.

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
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from PIL import Image

from gallery_lib.console.progress import Progress
from gallery_lib.data.folders import (
    HIDDEN,
    SPLITS,
    Faults,
    LeftOut,
    Summary,
    existing,
    printable,
    scan,
    some,
    walk,
)
from gallery_lib.errors import InputError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
MAKE_COMMAND = "python3 data_prep/mock_{}.py"
_SAMPLES_PER_CLASS = 2
_SAMPLES_PER_SPLIT = 32
_SHOWN = 5
# files examined before the next ones are submitted: memory does not grow with the folder
_CHUNK = 1024

T = TypeVar("T")


@dataclass(frozen=True)
class Listing:
    """One split: class names by number, the images of each class, and what is not read.

    Image paths are relative to the class folder. `missing` names the classes that only the training
    data has; these have no images here.
    """

    folder: Path
    classes: list[str]
    images: list[list[str]]
    left_out: LeftOut
    missing: tuple[str, ...] = ()

    def notices(self) -> tuple[str, ...]:
        """Return what a user should know about the split, one line each."""
        lines = list(self.left_out.notice(self.folder))
        if self.missing:
            lines.append(
                f"{printable(self.folder)} has no folder for {len(self.missing)} of the "
                f"{len(self.classes)} classes of train/ ({some(self.missing)}): held-out metrics "
                "do not count them"
            )
        if len(self.classes) == 1 and self.folder.name == "train":
            lines.append(
                f"{printable(self.folder)} has one class alone, {some(self.classes)}: there is "
                "nothing to tell it from"
            )
        return tuple(lines)


def list_classes(root: Path | str, split: str) -> list[str]:
    """Return the names of the class folders of `split`, sorted; InputError says what is missing."""
    return _class_folders(root, split)[0]


def _folder(root: Path | str, kind: str, part: str, expected: str) -> Path:
    hint = (
        "Give a folder with train/ and val/ in it. Mock data, in a folder of its own: "
        f"{MAKE_COMMAND.format(kind)}"
    )
    return existing(root, "data folder", hint, part, expected)


def _nothing_there(folder: Path, lacks: str, left_out: LeftOut, kind: str) -> InputError:
    holds = f" It holds {left_out}." if left_out.counts else ""
    return InputError(
        f"{printable(folder)} {lacks}.{holds} Mock data, in a folder of its own: "
        f"{MAKE_COMMAND.format(kind)}",
        parameter="data_dir",
    )


def _class_folders(root: Path | str, split: str) -> tuple[list[str], LeftOut]:
    folder = _folder(root, "imagenet", split, f"{split}/CLASS/*.JPEG")
    classes, left_out = [], LeftOut()
    for entry in scan(folder):
        if entry.name.startswith("."):
            left_out.add(HIDDEN, entry.name)
        elif Path(entry.path).is_dir():
            classes.append(entry.name)
        else:
            left_out.add("in no class folder", entry.name)
    if not classes:
        lacks = f"has no class folders; expected {split}/CLASS/*.JPEG"
        raise _nothing_there(folder, lacks, left_out, "imagenet")
    return classes, left_out


def list_split(
    root: Path | str,
    split: str,
    classes: Sequence[str] | None = None,
    faults: Faults | None = None,
) -> Listing:
    """Return the images of `split`, numbered by the training data's `classes` if given.

    `faults` notes classes that are empty or not among `classes`, instead of the error.

    Raises:
        InputError: for a folder of another layout, for class folders without images, and for
            classes that are not among `classes`.
    """
    folder = Path(root).expanduser().absolute() / split
    own, left_out = _class_folders(root, split)
    names = own if classes is None else list(classes)
    noted = Faults() if faults is None else faults
    if extra := sorted(set(own) - set(names)):
        noted.add(
            f"{printable(folder)} has {len(extra)} class(es) that train/ lacks: {some(extra)}. A "
            "model has outputs for the classes of train/ alone: add them there, or move these out "
            "of the folder."
        )
    images, empty, instead = [], [], LeftOut()
    for name in names:
        files, unread = walk(folder / name, EXTENSIONS) if name in own else ([], LeftOut())
        left_out.update(unread, f"{name}/")
        if name in own and not files:
            empty.append(name)
            instead.update(unread, f"{name}/")
        images.append(files)
    if empty:
        holds = f" They hold {instead}." if instead.counts else ""
        noted.add(
            f"{len(empty)} class folders of {printable(folder)} hold no images "
            f"({', '.join(EXTENSIONS)}): {some(empty)}.{holds} Fill them, or move them out of the "
            "folder."
        )
    if faults is None:
        noted.refuse()
    missing = tuple(sorted(set(names) - set(own)))
    return Listing(folder, names, images, left_out, missing)


def list_pairs(
    root: Path | str, split: str, faults: Faults | None = None
) -> tuple[list[tuple[Path, Path]], tuple[str, ...]]:
    """Return the images of `split` with their masks, and lines about what is not read.

    `faults` notes images without a mask of their own, which are left out then.

    Raises:
        InputError: the message says what is missing and where.
    """
    left_out = LeftOut()
    noted = Faults() if faults is None else faults
    files: dict[str, dict[str, Path]] = {}
    expected = f"{split}/images/NAME.jpg and {split}/masks/NAME.png"
    for kind, endings in {"images": EXTENSIONS, "masks": (".png",)}.items():
        folder = _folder(root, "segmentation", f"{split}/{kind}", expected)
        names, unread = walk(folder, endings)
        left_out.update(unread, f"{kind}/")
        by_stem = files.setdefault(kind, {})
        for name in names:
            other = by_stem.setdefault(str(Path(name).with_suffix("")), folder / name)
            if other != folder / name:
                noted.add(
                    f"{printable(other)} and {printable(name)} would belong to the same file. Give "
                    "them different names."
                )
    images, masks = files["images"], files["masks"]
    if not images:
        lacks = f"holds no images ({', '.join(EXTENSIONS)})"
        raise _nothing_there(folder.with_name("images"), lacks, left_out, "segmentation")
    for stem in masks.keys() - images.keys():
        left_out.add("a mask without an image", f"masks/{masks[stem].relative_to(folder)}")
    if lacking := [stem for stem in images if stem not in masks]:
        noted.add(
            f"{len(lacking)} of {len(images)} images in {printable(folder.with_name('images'))} "
            f"have no mask ({some(images[stem].name for stem in lacking)}): "
            f"{printable(images[lacking[0]].name)} needs {printable(folder / lacking[0])}.png. Add "
            "the masks, or move these images out of the folder."
        )
    if faults is None:
        noted.refuse()
    pairs = [(path, masks[stem]) for stem, path in images.items() if stem in masks]
    return pairs, left_out.notice(folder.parent)


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
