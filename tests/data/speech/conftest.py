"""Speech that the tests share: mock speech, a copy of it, and a manifest of six utterances."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from data.speech.feature_folders import ARRAYS, SPEAKER
from data.speech.small_speech import TINY

from gallery_lib.data.speech import features
from gallery_lib.data.speech.mock_speech import generate


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


@pytest.fixture
def tsv(tmp_path: Path) -> Path:
    """Return a folder of six utterances of three speakers as .npy files with a manifest."""
    folder = tmp_path / "tsv"
    folder.mkdir()
    for name, array in ARRAYS.items():
        np.save(folder / f"{name}.npy", array)
    features.write(
        folder, [(f"{name}.npy", SPEAKER[name], len(array)) for name, array in ARRAYS.items()]
    )
    return folder
