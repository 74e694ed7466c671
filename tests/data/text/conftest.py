"""Text that the tests share: files, and the same text tokenised."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_text import documents

from gallery_lib.data.text import tokenized as text


@pytest.fixture(scope="session")
def text_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of small text files, which must not be changed."""
    folder = tmp_path_factory.mktemp("text") / "files"
    (folder / "below").mkdir(parents=True)
    for number, document in enumerate(documents(count=6, sentences=150)):
        (folder / ("below" if number % 2 else ".") / f"{number}.txt").write_text(
            document.replace("\n", "\n\n")
        )
    (folder / "picture.png").write_bytes(b"\x89PNG")
    return folder


@pytest.fixture(scope="session")
def prepared(text_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the same text, tokenised, which must not be changed."""
    return text.prepare(text_files, tmp_path_factory.mktemp("tokens") / "made").root


@pytest.fixture(scope="session")
def wordpiece(prepared: Path) -> text.TokenisedText:
    """Return that text in pieces of words."""
    return text.find(str(prepared), "wordpiece")


@pytest.fixture(scope="session")
def byte_bpe(prepared: Path) -> text.TokenisedText:
    """Return that text in pairs of bytes."""
    return text.find(str(prepared), "byte-bpe")
