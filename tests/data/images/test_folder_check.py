"""What is wrong with a data folder: said once, with the place and what to do."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gallery_lib.data.images.image_folder import ImageFolder, check_image_folder
from gallery_lib.errors import InputError

COMMAND = [sys.executable, str(Path(__file__).resolve().parents[3] / "data_prep" / "check_imagenet.py")]


def test_a_good_folder_is_summarised(tiny_root: Path) -> None:
    summary = check_image_folder(tiny_root)
    assert (summary.classes, summary.images, summary.decoded) == (3, {"train": 18, "val": 6}, 12)
    assert check_image_folder(tiny_root, full=True).decoded == 24
    assert check_image_folder(tiny_root, split="val").images == {"val": 6}


def test_a_missing_folder_suggests_the_command_that_makes_data(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"{tmp_path}/none does not exist.*data_prep/mock_imagenet.py --out {tmp_path}/none"):
        ImageFolder(tmp_path / "none", "train", 32, train=True, seed=0)


def test_a_folder_without_train_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    with pytest.raises(InputError, match=r"has no train/ in it.*It holds pictures"):
        check_image_folder(tmp_path)


def test_giving_the_train_folder_itself_suggests_its_parent(tiny_root: Path) -> None:
    with pytest.raises(InputError, match=f"Did you mean its parent, {tiny_root}"):
        check_image_folder(tiny_root / "train")


def test_a_split_without_classes_is_named(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    with pytest.raises(InputError, match=f"{tmp_path}/train has no class folders"):
        check_image_folder(tmp_path)


def test_empty_class_folders_are_named(tiny_copy: Path) -> None:
    for split in ("train", "val"):
        (tiny_copy / split / "n00000009").mkdir()
    for check in (check_image_folder, lambda root: ImageFolder(root, "train", 32, train=True, seed=0)):
        with pytest.raises(InputError, match=r"1 class folders of .*train hold no images.*n00000009"):
            check(tiny_copy)


def test_classes_that_differ_between_the_splits_are_named(tiny_copy: Path) -> None:
    shutil.rmtree(tiny_copy / "val" / "n00000002")
    with pytest.raises(InputError, match="different classes; only in train/: n00000002"):
        check_image_folder(tiny_copy)


def test_the_full_check_finds_a_truncated_image_that_the_quick_one_skips(tiny_copy: Path) -> None:
    victim = sorted((tiny_copy / "train" / "n00000002").iterdir())[1]
    victim.write_bytes(victim.read_bytes()[:5000])
    check_image_folder(tiny_copy)
    with pytest.raises(InputError, match=f"1 of 24 images.*unreadable(.|\n)*{victim.name}"):
        check_image_folder(tiny_copy, full=True)


def test_the_command_ends_with_0_or_2_and_one_message(tiny_root: Path, tmp_path: Path) -> None:
    good = subprocess.run([*COMMAND, str(tiny_root), "--full"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (good.returncode, good.stderr) == (0, "") and "3 classes, 18 train, 6 val images; 24 read, all fine" in good.stdout
    bad = subprocess.run([*COMMAND, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert bad.returncode == 2 and "has no train/" in bad.stderr and "Traceback" not in bad.stderr
