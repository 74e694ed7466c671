"""Image classification: what the tasks show and count, their images, and effects of rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from refusal import refused
from tasks.image_tasks import CLASSES, NAMES
from torch import nn

from gallery_lib import tasks
from gallery_lib.config import TrainConfig
from gallery_lib.tasks.domains import classification
from gallery_lib.tasks.task import Splits

WORDS = ("red discs, striped across", "orange triangles, finely striped across",
         "lime squares, striped down")  # fmt: skip


@pytest.fixture(scope="module")
def splits(folder: str) -> Splits:
    """Return the mock ImageNet as the tasks load it, 32 pixels wide."""
    return tasks.data_of(TrainConfig(model="resnet18", data_dir=folder, image_size=32))


def test_the_examples_are_augmented_training_images_of_every_class(splits):
    shown = classification.examples(splits, count=9)
    assert len(shown.images) == len(shown.captions) == 9
    assert all(image.shape == (32, 32, 3) and image.dtype == np.uint8 for image in shown.images)
    assert shown.captions == [name.replace(", ", ",\n") for name in WORDS for _ in range(3)]
    assert "9 of 18 training images, augmented, 32×32, of 3 classes" in shown.description
    assert all(
        np.array_equal(image, splits.train[2 * i][0].numpy())
        for i, image in enumerate(shown.images)
    )
    assert classification.chance(splits) == {"top1": 1 / CLASSES}


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)],
)
def test_the_loss_is_computed_in_float32_at_least(dtype, expected):
    logits = torch.randn(4, 1000, dtype=dtype)
    loss = classification.loss(lambda images: logits, (torch.empty(4), torch.arange(4)))  # type: ignore[arg-type]
    assert loss.dtype is expected
    assert float(loss) == float(nn.functional.cross_entropy(logits.to(expected), torch.arange(4)))


@pytest.mark.parametrize("name", NAMES)
def test_a_task_takes_images_of_its_real_and_of_its_quick_size(name):
    task = tasks.get(name)
    with torch.device("meta"):
        model = task.build_model().eval()
        for size in (task.image_size, task.quick["image_size"]):
            assert model(torch.empty(2, 3, size, size)).shape == (2, 1000)


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [("alexnet", 62, "at least 63"), ("timm_vision_transformer", 100, "multiple of 16")],
)
def test_an_image_size_that_a_model_cannot_take_is_refused(name, size, message, folder):
    with refused("image_size", size, name, message):
        tasks.data_of(TrainConfig(model=name, data_dir=folder, image_size=size))


@pytest.mark.parametrize("size", [32, 96, 256])
def test_the_vision_transformer_takes_images_of_other_sizes_with_the_same_parameters(size):
    with torch.device("meta"):
        model = tasks.get("timm_vision_transformer").build_model()
        assert model.pos_embed.shape == (1, 1 + 14 * 14, 384)  # type: ignore[union-attr]
        assert model(torch.empty(2, 3, size, size)).shape == (2, 1000)
        features = model.forward_features(torch.empty(2, 3, size, size))  # type: ignore[operator]
        assert features.shape == (2, 1 + (size // 16) ** 2, 384)
