"""Defects of a data folder are reported once, with the place and what to do."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest
from data_command import run_data_command
from refusal import check_refused_command, refused

from gallery_lib.data.images.check import check_image_folder
from gallery_lib.data.images.image_folder import ImageFolder

run = partial(run_data_command, "check_imagenet")


def test_a_good_folder_is_summarised(tiny_root: Path) -> None:
    shown = f"{tiny_root}: 3 classes, 18 train, 6 val images; "
    assert str(check_image_folder(tiny_root)) == f"{shown}12 read, all fine"
    assert str(check_image_folder(tiny_root, full=True)) == f"{shown}24 read, all fine"


@pytest.mark.parametrize(
    ("content", "given", "values"),
    [
        ("", "none", ["data_prep/mock_imagenet.py"]),
        ("pictures/", ".", ["train/", "pictures"]),
        ("train/", ".", ["/train ", "train/CLASS"]),
        ("train/cat/", "train", ["Did you mean its parent"]),
        ("file", "file", ["is a file"]),
        ("", "x" * 300, ["File name too long"]),
    ],
)
def test_a_folder_of_another_layout_is_refused_by_the_check_and_by_a_training(
    tmp_path: Path, content: str, given: str, values: list[str]
) -> None:
    if content.endswith("/"):
        (tmp_path / content).mkdir(parents=True)
    elif content:
        (tmp_path / content).touch()
    with refused("data_dir", *values, given if given != "." else tmp_path):
        check_image_folder(tmp_path / given)
    with refused("data_dir", *values):
        ImageFolder(tmp_path / given, "train", 32, train=True)


def test_all_faults_are_named_in_one_run(tiny_copy: Path) -> None:
    (tiny_copy / "train" / "n00000009").mkdir()
    (tiny_copy / "val" / "only here").mkdir()
    image = next((tiny_copy / "val" / "n00000001").iterdir())
    image.write_bytes(b"none")
    words = "1 class folders of", "n00000009", "1 class(es) that train/ lacks: only here", image
    for full in (False, True):
        with refused("data_dir", "faults were found", *words):
            check_image_folder(tiny_copy, full=full)


def test_the_full_check_names_every_damaged_file_with_the_reason(tiny_copy: Path) -> None:
    files = sorted((tiny_copy / "train" / "n00000001").iterdir())
    data = files[4].read_bytes()
    files[4].write_bytes(data[: len(data) // 2] + bytes(400) + data[len(data) // 2 + 400 :])
    files[5].write_bytes(data[: len(data) // 2])
    check_image_folder(tiny_copy)  # skips both
    with refused("data_dir", "2 of 24 images") as raised:
        check_image_folder(tiny_copy, full=True)
    lines = str(raised.value).splitlines()
    assert lines[1].startswith(f"  {files[4]}: decodes with a warning: Corrupt JPEG data")
    assert lines[2].startswith(f"  {files[5]}: image file is truncated") and len(lines) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may run a command as somebody else")
def test_a_folder_that_may_not_be_read_ends_the_command_with_2(tiny_copy: Path) -> None:
    for folder in (tiny_copy, *list(tiny_copy.parents)[:-1]):
        folder.chmod(folder.stat().st_mode | 0o555)
    (tiny_copy / "train" / "n00000002").chmod(0)
    result = run(str(tiny_copy), user=65534)
    values = f"{tiny_copy}/train/n00000002", "Permission denied"
    check_refused_command(result.returncode, result.stderr, *values)
    tiny_copy.chmod(0)
    result = run(str(tiny_copy), user=65534)
    values = f"data folder {tiny_copy}", "Permission denied"
    check_refused_command(result.returncode, result.stderr, *values)
