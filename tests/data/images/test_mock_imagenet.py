"""Mock ImageNet on disk: files written, interruptions, verification and refusals."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import simplejpeg
from data_command import data_command

from gallery_lib.data.images.mock_imagenet import (
    MAX_CLASSES,
    MockSpec,
    class_id,
    class_in_words,
    encode,
    look,
    render,
)

COMMAND = data_command("mock_imagenet")


def files_of(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*.JPEG")}


def test_the_layout_is_that_of_imagenet(tiny_root: Path) -> None:
    paths = files_of(tiny_root)
    assert len(paths) == 24
    assert all(
        re.fullmatch(r"train/(n\d{8})/\1_\d+\.JPEG|val/n\d{8}/ILSVRC2012_val_\d{8}\.JPEG", path)
        for path in paths
    )
    assert {path.split("/")[1] for path in paths} == {"n00000001", "n00000002", "n00000003"}


def test_files_decode_at_the_cost_of_imagenet_s() -> None:
    small = MockSpec()
    images = [render(small, "train", index) for index in range(0, 640, 8)]
    files = [encode(image) for image in images]
    assert 95_000 < np.mean([len(data) for data in files]) < 135_000
    assert np.std([len(data) for data in files]) > 10_000
    shapes = {image.shape for image in images}
    assert (375, 500, 3) in shapes and (500, 375, 3) in shapes and len(shapes) > 5
    assert {simplejpeg.decode_jpeg_header(data)[3] for data in files} == {"444"}


def test_no_two_classes_look_the_same_or_are_called_the_same() -> None:
    names = {class_in_words(class_id(label)) for label in range(MAX_CLASSES)}
    assert len(names) == MAX_CLASSES == len({look(label) for label in range(MAX_CLASSES)})
    for wnid, words in {
        "n00000001": "red discs, striped across",
        "n00001000": "pink half-discs, finely chequered aslant",
        **{other: other for other in ("n01440764", "n00001001", "n00000000", "tench", "n1")},
    }.items():
        assert class_in_words(wnid) == words
