"""Classes, their numbers and their images are torchvision's.

Files on which torchvision would fail are left out and reported.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torchvision
from PIL import Image
from refusal import refused

from gallery_lib.data.images.image_folder import ImageFolder
from gallery_lib.data.images.listing import EXTENSIONS, list_split


def save(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder of three classes with images of all endings, some in folders below."""
    for split in ("train", "val"):
        for name in ("cat", "Dog", "a-b"):
            for ending in EXTENSIONS:
                save(tmp_path / split / name / f"1{ending}")
                save(tmp_path / split / name / "more" / f"2{ending.upper()}")
            save(tmp_path / split / name / "more-of" / "deep" / "3.jpg")
    return tmp_path


def samples(data: ImageFolder) -> list[tuple[str, int]]:
    return [(str(data.path(index)), data.label(index)) for index in range(len(data))]


def test_samples_classes_and_order_are_those_of_torchvision(root: Path) -> None:
    assert sorted(EXTENSIONS) == sorted(torchvision.datasets.folder.IMG_EXTENSIONS)
    oracle = torchvision.datasets.ImageFolder(root / "train")
    ours = ImageFolder(root, "train", 32, train=False)
    assert ours.classes == oracle.classes == ["Dog", "a-b", "cat"]
    assert samples(ours) == oracle.samples and len(ours) == 3 * (2 * len(EXTENSIONS) + 1)
    assert ours.notices == ()
    assert ours[len(ours) - 1][0].shape == (32, 32, 3)


def test_what_is_left_out_is_counted_by_the_data_set(root: Path) -> None:
    (root / "train" / "cat" / "list.txt").write_text("x")
    (root / "train" / "cat" / "old.gif").write_text("x")
    (root / "train" / "labels.csv").write_text("x")
    (root / "train" / ".ipynb_checkpoints").mkdir()
    (line,) = ImageFolder(root, "train", 32, train=True).notices
    assert line == (
        f"left out of {root / 'train'}: 1 hidden (.ipynb_checkpoints), 1 in no class folder "
        "(labels.csv), "
        "2 with another ending (cat/list.txt)"
    )


def test_a_class_whose_files_are_all_left_out_says_which(root: Path) -> None:
    (root / "train" / "emu").mkdir()
    (root / "train" / "emu" / "bird.gif").write_text("x")
    with refused("data_dir", "emu. ", "emu/bird.gif"):
        list_split(root, "train")


def test_held_out_labels_are_numbers_of_the_training_classes(root: Path) -> None:
    save(root / "train" / "A-first" / "1.jpg")  # sorts before all others, and val/ lacks it
    train = ImageFolder(root, "train", 32, train=True)
    held_out = ImageFolder(root, "val", 32, train=False, classes=train.classes)
    assert held_out.classes == train.classes == ["A-first", "Dog", "a-b", "cat"]
    names = {
        held_out.path(index).relative_to(root / "val").parts[0]: held_out.label(index)
        for index in range(len(held_out))
    }
    assert names == {"Dog": 1, "a-b": 2, "cat": 3}
    assert held_out[0][1] == 1
    assert held_out.notices == (
        f"{root / 'val'} has no folder for 1 of the 4 classes of train/ (A-first): held-out "
        "metrics do not count them",
    )


def test_one_class_alone_is_announced(tmp_path: Path) -> None:
    save(tmp_path / "train" / "cat" / "1.jpg")
    assert list_split(tmp_path, "train").notices() == (
        f"{tmp_path / 'train'} has one class alone, cat: there is nothing to tell it from",
    )
