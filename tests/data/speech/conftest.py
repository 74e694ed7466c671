"""Mock speech of a few words, and a copy of it to be damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gallery_lib.data.speech.mock_speech import SpeechSpec, generate

TINY = SpeechSpec(characters=12, words=10, train=24, val=8)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return mock speech of spec TINY, which must not be changed."""
    path = tmp_path_factory.mktemp("data") / "speech"
    generate(path, TINY)
    return path


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """Return a copy of the mock speech, to be damaged."""
    return Path(shutil.copytree(root, tmp_path / "copy"))
