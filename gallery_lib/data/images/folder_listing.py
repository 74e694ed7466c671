"""List the classes and images of an ImageNet-like folder.

The layout is `ROOT/train/CLASS/…` and `ROOT/val/CLASS/…`. Classes, their numbers, the accepted
endings and the order of images are those of torchvision's ImageFolder. What ImageFolder would fail
on later is left out here and reported (data/folder_walk.py). `val/` takes the class numbers of
`train/`. Listing opens no image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gallery_lib.data.folder_walk import HIDDEN, LeftOut, is_folder, printable, scan, some, walk
from gallery_lib.errors import InputError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
SPLITS = ("train", "val")
MAKE_COMMAND = "python3 data_prep/mock_imagenet.py"
OUTSIDE = "in no class folder"


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
        lines = []
        if self.left_out:
            lines.append(f"left out of {printable(self.folder)}: {self.left_out}")
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
    """Return the names of the class folders of `split`, sorted.

    Raises:
        InputError: the message says what is missing and where.
    """
    return _class_folders(root, split)[0]


def _class_folders(root: Path | str, split: str) -> tuple[list[str], LeftOut]:
    root = Path(root).expanduser()
    shown = printable(root)
    make = f"Mock data, in a folder of its own: {MAKE_COMMAND}"
    if split not in SPLITS:
        raise InputError(f"split is {split!r}; it must be `train` or `val`.", parameter="split")
    folder = root / split
    try:
        if not root.exists():
            raise InputError(
                f"The data folder {shown} does not exist. Give a folder with train/ and val/ in "
                f"it. {make}",
                parameter="data_dir",
            )
        if not root.is_dir():
            raise InputError(
                f"The data folder {shown} is a file. Give a folder with train/ and val/ in it.",
                parameter="data_dir",
            )
        has_split = folder.is_dir()
    except OSError as error:
        # the name is too long, or a folder on the way may not be entered
        raise InputError(
            f"Cannot read the data folder {shown}: {error.strerror}.", parameter="data_dir"
        ) from error
    if not has_split:
        names = [entry.name for entry in scan(root) if is_folder(entry)]
        hint = f"It holds {some(names)}." if names else "It holds no folders."
        if root.name in SPLITS:
            hint += f" Did you mean its parent, {printable(root.parent)}?"
        raise InputError(
            f"The data folder {shown} has no {split}/ in it; expected {split}/CLASS/*.JPEG. "
            f"{hint} {make}",
            parameter="data_dir",
        )
    classes, left_out = [], LeftOut()
    for entry in scan(folder):
        if entry.name.startswith("."):
            left_out.add(HIDDEN, entry.name)
        elif is_folder(entry):
            classes.append(entry.name)
        else:
            left_out.add(OUTSIDE, entry.name)
    if not classes:
        holds = f" It holds {left_out}." if left_out else ""
        raise InputError(
            f"{printable(folder)} has no class folders; expected {split}/CLASS/*.JPEG.{holds} "
            f"{make}",
            parameter="data_dir",
        )
    return classes, left_out


def list_split(root: Path | str, split: str, classes: Sequence[str] | None = None) -> Listing:
    """Return the images of `split`, numbered by the training data's `classes` if given.

    Raises:
        InputError: for a folder of another layout, for class folders without images, and for
            classes that are not among `classes`.
    """
    folder = Path(root).expanduser().absolute() / split
    own, left_out = _class_folders(root, split)
    names = own if classes is None else list(classes)
    if extra := sorted(set(own) - set(names)):
        raise InputError(
            f"{printable(folder)} has {len(extra)} class(es) that train/ lacks: {some(extra)}. A "
            "model has outputs for the classes of train/ alone: add them there, or move these out "
            "of the folder.",
            parameter="data_dir",
        )
    present, images = set(own), []
    empty, instead = [], LeftOut()
    for name in names:
        files: list[str] = []
        if name in present:
            files, unread = walk(folder / name, EXTENSIONS)
            left_out.update(unread, f"{name}/")
            if not files:
                empty.append(name)
                instead.update(unread, f"{name}/")
        images.append(files)
    if empty:
        holds = f" They hold {instead}." if instead else ""
        raise InputError(
            f"{len(empty)} class folders of {printable(folder)} hold no images "
            f"({', '.join(EXTENSIONS)}): {some(empty)}.{holds} Fill them, or move them out of the "
            "folder.",
            parameter="data_dir",
        )
    missing = tuple(name for name in names if name not in present)
    return Listing(folder, names, images, left_out, missing)
