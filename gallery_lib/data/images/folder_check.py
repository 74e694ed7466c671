"""Is this folder an ImageNet-like data set, and what is wrong with it if not?

`ROOT/train/CLASS/*.JPEG` and `ROOT/val/CLASS/*.JPEG`. Listing tells what a loader needs; the check adds that both
splits have the same classes and that images can be read: a few per class, or every one with `full`. It compares
nothing with a manifest (mock_manifest.verify does that) and changes nothing.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from gallery_lib.data.images.decode import load
from gallery_lib.errors import InputError

EXTENSIONS = (b".jpeg", b".jpg", b".png")
SPLITS = ("train", "val")
MAKE_COMMAND = "python data_prep/mock_imagenet.py --out {root}"
_SAMPLES_PER_CLASS = 2
_SHOWN = 5


@dataclass(frozen=True)
class FolderSummary:
    """What a checked folder holds: number of classes, images by split, and how many of them were decoded."""

    root: Path
    classes: int
    images: dict[str, int] = field(default_factory=dict)
    decoded: int = 0


def list_classes(root: Path | str, split: str) -> list[str]:
    """Names of the class folders of `split`, sorted. Raises InputError that says what is missing and where."""
    root = Path(root).expanduser()
    make = f"Mock data: {MAKE_COMMAND.format(root=root)}"
    if split not in SPLITS:
        raise InputError(f"split is {split!r}; it must be `train` or `val`.")
    if not root.exists():
        raise InputError(f"The data folder {root} does not exist. Give a folder with train/ and val/ in it. {make}")
    if not root.is_dir():
        raise InputError(f"The data folder {root} is a file. Give a folder with train/ and val/ in it.")
    folder = root / split
    if not folder.is_dir():
        found = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
        hint = f"It holds {_some(found)}." if found else "It holds no folders."
        if root.name in SPLITS:
            hint += f" Did you mean its parent, {root.parent}?"
        raise InputError(f"The data folder {root} has no {split}/ in it; expected {split}/CLASS/*.JPEG. {hint} {make}")
    with os.scandir(folder) as entries:
        classes = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    if not classes:
        raise InputError(f"{folder} has no class folders; expected {split}/CLASS/*.JPEG. {make}")
    return classes


def list_images(folder: Path | str | bytes) -> list[bytes]:
    """Names of the image files of one class folder, sorted; bytes, since names need not be text."""
    with os.scandir(os.fsencode(folder)) as entries:
        return sorted(entry.name for entry in entries if entry.name.lower().endswith(EXTENSIONS) and not entry.name.startswith(b"."))


def empty_classes_error(folder: Path, empty: list[str]) -> InputError:
    """The error for class folders without images."""
    return InputError(f"{len(empty)} class folders of {folder} hold no images (.JPEG, .jpg, .png): {_some(empty)}. Fill or remove them.")


def check_image_folder(root: Path | str, split: str | None = None, full: bool = False) -> FolderSummary:
    """Check the folder `root` (only `split` of it, if given) and say what it holds.

    Reads a few images per class, or every one with `full`, in as many threads as there are cores. Raises InputError
    that names what is missing, empty, in disagreement or unreadable, where, and what to do.
    """
    root = Path(root).expanduser()
    splits = SPLITS if split is None else (split,)
    classes = {name: list_classes(root, name) for name in splits}
    if split is None:
        _check_same_classes(root, classes["train"], classes["val"])
    images: dict[str, int] = {}
    decoded, unreadable = 0, []
    with ThreadPoolExecutor() as pool:
        for name, split_classes in classes.items():
            listed = {wnid: list_images(root / name / wnid) for wnid in split_classes}
            if empty := [wnid for wnid, names in listed.items() if not names]:
                raise empty_classes_error(root / name, empty)
            images[name] = sum(map(len, listed.values()))
            for wnid, names in listed.items():
                chosen = names if full else names[:: max(1, len(names) // _SAMPLES_PER_CLASS)][:_SAMPLES_PER_CLASS]
                decoded += len(chosen)
                folder = os.fsencode(root / name / wnid)
                unreadable += [error for error in pool.map(_read_error, [folder + b"/" + file for file in chosen]) if error]
    if unreadable:
        shown = "\n  ".join(unreadable[:_SHOWN]) + ("\n  …" if len(unreadable) > _SHOWN else "")
        raise InputError(f"{len(unreadable)} of {decoded} images read in {root} are unreadable:\n  {shown}")
    return FolderSummary(root, len(next(iter(classes.values()))), images, decoded)


def _check_same_classes(root: Path, train: list[str], val: list[str]) -> None:
    if train == val:
        return
    only_train, only_val = sorted(set(train) - set(val)), sorted(set(val) - set(train))
    parts = [f"only in {name}/: {_some(only)}" for name, only in (("train", only_train), ("val", only_val)) if only]
    hint = " ImageNet's own val archive is flat: sort it into class folders first." if only_train else ""
    raise InputError(f"train/ and val/ of {root} have different classes; {'; '.join(parts)}.{hint}")


def _read_error(path: bytes) -> str | None:
    """What is wrong with one image file, read whole; None if nothing."""
    try:
        load(path, lambda height, width: (0, 0, height, width), size=1)  # the whole of it, so that nothing is left unread
    except InputError as error:
        return str(error)
    return None


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f", … ({len(names)} in all)" if len(names) > _SHOWN else "")
