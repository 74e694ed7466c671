"""Small mock ImageNet that the tests of image classifiers share."""

from __future__ import annotations

import pytest
from tasks.image_tasks import CLASSES

from gallery_lib.data.images.mock_imagenet import MockSpec, generate


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a small mock ImageNet, which must not be changed."""
    root = tmp_path_factory.mktemp("data") / "imagenet"
    generate(
        root,
        MockSpec(classes=CLASSES, train_per_class=6, val_per_class=2),
        progress=False,
    )
    return str(root)
