"""The classes of mock ImageNet have names that a person can read, and no two the same."""

from __future__ import annotations

import pytest

from gallery_lib.data.images.mock_classes import MAX_CLASSES, class_in_words, look
from gallery_lib.data.images.mock_render import class_id


def test_no_two_classes_are_called_the_same() -> None:
    names = {class_in_words(class_id(label)) for label in range(MAX_CLASSES)}
    assert len(names) == MAX_CLASSES == len({look(label) for label in range(MAX_CLASSES)})


@pytest.mark.parametrize(
    ("wnid", "words"),
    [
        ("n00000001", "red discs, striped across"),
        ("n00000002", "orange triangles, finely striped across"),
        ("n00000010", "pink keyholes, finely ringed"),
        ("n00001000", "pink half-discs, finely chequered aslant"),
    ],
)
def test_a_name_says_hue_outline_and_texture(wnid: str, words: str) -> None:
    assert class_in_words(wnid) == words


@pytest.mark.parametrize("other", ["n01440764", "n00001001", "n00000000", "tench", "n1"])
def test_another_data_sets_class_keeps_its_id(other: str) -> None:
    assert class_in_words(other) == other
