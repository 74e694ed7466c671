"""List the classes and images of an ImageNet-like folder; torch, which takes seconds, stays out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gallery_lib.data.folders import (
    HIDDEN,
    Faults,
    LeftOut,
    existing,
    is_folder,
    printable,
    scan,
    some,
    walk,
)
from gallery_lib.errors import InputError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
SPLITS = ("train", "val")
MAKE_COMMAND = "python3 data_prep/mock_imagenet.py"


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


def nothing_there(folder: Path, lacks: str, left_out: LeftOut, make_command: str) -> InputError:
    """Return the error about a folder without what a data set reads, and how mock data are made."""
    return InputError(
        f"{printable(folder)} {lacks}.{left_out.held()} Mock data, in a folder of its own: "
        f"{make_command}",
        parameter="data_dir",
    )


def _class_folders(root: Path | str, split: str) -> tuple[list[str], LeftOut]:
    make = f"Mock data, in a folder of its own: {MAKE_COMMAND}"
    hint = f"Give a folder with train/ and val/ in it. {make}"
    folder = existing(root, "data folder", hint, split, f"{split}/CLASS/*.JPEG")
    classes, left_out = [], LeftOut()
    for entry in scan(folder):
        if entry.name.startswith("."):
            left_out.add(HIDDEN, entry.name)
        elif is_folder(entry):
            classes.append(entry.name)
        else:
            left_out.add("in no class folder", entry.name)
    if not classes:
        lacks = f"has no class folders; expected {split}/CLASS/*.JPEG"
        raise nothing_there(folder, lacks, left_out, MAKE_COMMAND)
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
        holds = f" They hold {instead}." if instead.counts else ""
        noted.add(
            f"{len(empty)} class folders of {printable(folder)} hold no images "
            f"({', '.join(EXTENSIONS)}): {some(empty)}.{holds} Fill them, or move them out of the "
            "folder."
        )
    if faults is None:
        noted.refuse()
    missing = tuple(name for name in names if name not in present)
    return Listing(folder, names, images, left_out, missing)
