"""Sources of text: prose from Python sources."""

from __future__ import annotations

from pathlib import Path

import pytest
from refusal import refused

from gallery_lib.data.text import corpus as text_corpus


def test_prose_is_taken_from_python_sources_and_code_is_not(tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "left_out.py").write_text(
        '"""A docstring of a test, which is not looked at by anyone."""\n'
    )
    (tmp_path / "broken.py").write_text("def (:\n")
    (tmp_path / "b.py").write_text(
        '"""Docstring of the module,\n'
        "which goes over two lines.\n"
        "\n"
        ">>> and_an_example() + of_some_code(1, 2, 3)\n"
        '"""\n'
        "# A comment that goes over\n# two lines of this source as well.\n"
        "def f(x):\n"
        "    return {'key': 'short', 'message': 'A message to the user of this program.'}\n"
        "table = '0x00 0x01 0x02 0x03 0x04 0x05 0x06 0x07'\n"
    )
    (tmp_path / "a.py").write_text(
        '"""Docstring of the module, which goes over two lines."""\n'
        "class A:\n"
        '    """What this class is meant to be."""\n'
    )
    assert text_corpus.standard_library(tmp_path) == [
        "Docstring of the module, which goes over two lines.\nWhat this class is meant to be.",
        (
            "A message to the user of this program.\n"
            "A comment that goes over two lines of this source as well."
        ),
    ]


def test_a_python_without_sources_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_corpus.sysconfig, "get_path", lambda name: str(tmp_path))
    with refused("data_dir", tmp_path, " 0 characters"):
        text_corpus.default()


def test_a_tenth_of_the_documents_is_held_out_and_long_ones_count_as_several() -> None:
    for documents in (
        ["one " * 200_000],
        [f"document {i} " * 1000 for i in range(40)],
        ["ab" * 500_000],
        ["short text. " * 2000],
    ):
        train, held_out = text_corpus.split(documents)
        share = sum(map(len, held_out)) / sum(map(len, train + held_out))
        assert 0.05 < share < 0.12
        letters = (
            sorted("".join(train + held_out).replace(" ", "")),
            sorted("".join(documents).replace(" ", "")),
        )
        assert letters[0] == letters[1]
    train, held_out = text_corpus.split(["alpha beta\ngamma " * 20_000])
    words = {word for part in train + held_out for word in part.split()}
    assert len(train) > 10 and words == {"alpha", "beta", "gamma"}  # none is cut
