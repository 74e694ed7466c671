"""Segmentation: Dice as a loss and as a metric, and what the task shows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from gallery_lib import tasks
from gallery_lib.config import TrainConfig
from gallery_lib.data.images.mock_segmentation import SegmentationSpec, generate
from gallery_lib.tasks.domains import segmentation
from gallery_lib.tasks.domains.segmentation import dice
from gallery_lib.tasks.task import Splits


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> Splits:
    """Return three training images and two held out, 32 pixels high."""
    root = tmp_path_factory.mktemp("segmentation") / "data"
    generate(root, SegmentationSpec(train=3, val=2))
    return tasks.data_of(TrainConfig(model="pytorch_unet", data_dir=str(root), image_size=32))


def square(top: int, left: int, side: int = 10) -> Tensor:
    mask = torch.zeros(1, 20, 20, dtype=torch.float64)
    mask[:, top : top + side, left : left + side] = 1
    return mask


def test_dice_is_twice_the_overlap_over_both_areas():
    assert dice(square(0, 0), square(0, 0)) == 1 == dice(square(0, 0, 0), square(0, 0, 0))
    assert dice(square(0, 0), square(0, 5)) == pytest.approx(0.5, abs=0.01)
    assert dice(square(0, 0), square(10, 10)) == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize(
    ("height", "width"), [(640, 959), (128, 191), (96, 143), (64, 95), (32, 47)]
)
def test_widths_are_odd_and_keep_the_shape(height, width):
    assert segmentation.width_of(height) == width and width % 2 == 1
    assert width / height == pytest.approx(959 / 640, abs=1 / height)


class Fixed(nn.Module):
    """Model whose logits say `mask`, whatever it is shown."""

    def __init__(self, mask: Tensor, certainty: float = 100.0) -> None:
        super().__init__()
        self.logits = torch.stack((1 - mask.float(), mask.float()), 1) * certainty

    def forward(self, images: Tensor) -> Tensor:
        return self.logits.to(images.dtype)


def test_the_loss_is_zero_for_the_right_mask_large_for_the_wrong_one_and_keeps_float64():
    mask, images = square(3, 4).long(), torch.zeros(1, 3, 20, 20)
    assert segmentation.loss(Fixed(mask), (images, mask)) == pytest.approx(0, abs=1e-6)
    assert segmentation.loss(Fixed(1 - mask), (images, mask)) > 10
    undecided = segmentation.loss(Fixed(mask, certainty=0.0), (images, mask))
    assert undecided == pytest.approx(
        0.6931 + 1 - dice(torch.full((1, 20, 20), 0.5), mask.float()).item(), abs=1e-3
    )
    assert segmentation.loss(Fixed(mask), (images.double(), mask)).dtype is torch.float64
    assert segmentation.loss(Fixed(mask), (images.bfloat16(), mask)).dtype is torch.float32


def test_chance_is_the_dice_of_taking_everything_for_the_object(splits):
    data = splits.held_out
    batch = data.finish_batch(default_collate([data[0], data[1]]))  # type: ignore
    total, count = segmentation.metrics(Fixed(torch.ones(2, 32, 47)), batch)["dice"]
    assert segmentation.chance(splits)["dice"] == pytest.approx(float(total) / count)
    assert segmentation.metrics(Fixed(batch[1]), batch)["dice"] == (2.0, 2)


def test_examples_lay_masks_over_the_images(splits):
    shown = segmentation.examples(splits)
    assert len(shown.images) == 3 and all(image.shape == (32, 47, 3) for image in shown.images)
    image, mask = splits.held_out[0]
    assert not (segmentation.overlaid(image, mask) == image.numpy()).all()
    nothing = segmentation.overlaid(image, torch.zeros_like(mask))
    assert (nothing == image.numpy()).all()  # an empty mask changes nothing
