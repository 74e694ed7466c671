"""A tiny mock ImageNet, made once per session; tests that change files take a copy of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gallery_lib.data.images.mock_imagenet import MockSpec, generate

TINY = MockSpec(classes=3, train_per_class=6, val_per_class=2, seed=5)


@pytest.fixture(scope="session")
def tiny_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a complete mock data set of spec TINY, which must not be changed."""
    root = tmp_path_factory.mktemp("data") / "tiny"
    generate(root, TINY, progress=False)
    return root


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """Return a copy of the data set `root` of a module, to be damaged."""
    return Path(shutil.copytree(root, tmp_path / "copy"))


@pytest.fixture
def tiny_copy(tiny_root: Path, tmp_path: Path) -> Path:
    """Return a copy of the tiny data set, to be damaged."""
    return Path(shutil.copytree(tiny_root, tmp_path / "copy"))
