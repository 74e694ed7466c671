"""Small mock set of images with masks, and a copy of it to be damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from data.images.small_segmentation import SPEC

from gallery_lib.data.images.mock_segmentation import generate


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small mock set, which must not be changed."""
    folder = tmp_path_factory.mktemp("segmentation") / "small"
    generate(folder, SPEC)
    return folder


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """Return a copy of the mock set, to be damaged."""
    return Path(shutil.copytree(root, tmp_path / "copy"))
