"""U-Net: output sizes, gradients, Dice as a loss and as a metric, and what the task shows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import default_collate

from gallery_lib import tasks
from gallery_lib.config import TrainConfig
from gallery_lib.data.images.mock_segmentation import SegmentationSpec, generate
from gallery_lib.tasks import pytorch_unet
from gallery_lib.tasks.pytorch_unet import UNet, Up, dice
from gallery_lib.tasks.task import Splits


@pytest.mark.parametrize(("height", "width"), [(16, 16), (33, 47), (40, 59), (31, 16)])
def test_logits_are_as_large_as_the_image_also_where_halving_rounds_down(height, width):
    with torch.no_grad():
        logits = UNet(classes=2).eval()(torch.randn(1, 3, height, width))
    assert logits.shape == (1, 2, height, width)


def test_a_level_up_enlarges_bilinearly_with_corners_kept_and_pads_at_the_end():
    up = Up(4, 3)
    up.convolutions = nn.Identity()  # type: ignore[assignment]
    below, beside = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 7, 8)
    larger = F.interpolate(below, (6, 8), mode="bilinear", align_corners=True)
    assert torch.equal(up(below, beside), torch.cat((beside, F.pad(larger, (0, 0, 0, 1))), 1))


def test_activations_keep_their_size_in_an_untrained_model():
    torch.manual_seed(0)
    # The model has seen nothing, so its running statistics normalise nothing.
    model = UNet().eval()
    sizes: list[float] = []
    for level in (model.first, *model.down):
        level.register_forward_hook(
            lambda module, args, output: sizes.append(float(output.square().mean()))
        )
    with torch.no_grad():
        model(torch.randn(1, 3, 64, 95))
    assert all(0.1 < size < 10 for size in sizes), sizes


class DecidedOnce(nn.Module):
    """ReLU that lets through in later passes what it let through in its first one."""

    mask: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.mask is None:
            self.mask = x.detach() > 0
        self.decided_otherwise = int((self.mask != (x > 0)).sum())
        return x * self.mask


@pytest.mark.slow
def test_gradients_in_fp32_agree_with_float64():
    """float64 follows the decisions of fp32's ReLUs.

    One element within rounding of zero that a ReLU decides the other way moves gradients by up to
    2 %. Which element, if any, depends on the CPU.
    """
    torch.manual_seed(0)
    model = UNet()
    names = [name for name, module in model.named_modules() if isinstance(module, nn.ReLU)]
    rectifiers = [DecidedOnce() for _ in names]
    for name, rectifier in zip(names, rectifiers, strict=True):
        model.set_submodule(name, rectifier)
    image = torch.randn(1, 3, 64, 95)
    mask = (image.mean(1) > 0).long()
    single, exact = {}, {}
    for dtype, gradients in ((torch.float32, single), (torch.float64, exact)):
        model.to(dtype).zero_grad()
        F.cross_entropy(model(image.to(dtype)), mask).backward()
        gradients |= {name: p.grad.double() for name, p in model.named_parameters()}
    assert sum(rectifier.decided_otherwise for rectifier in rectifiers) < 20  # of 2.5 million
    # Biases before a batch norm have gradients below this.
    negligible = 1e-5 * max(g.square().mean().sqrt() for g in exact.values())
    errors = [
        (single[name] - g).norm() / g.norm()
        for name, g in exact.items()
        if g.square().mean().sqrt() > negligible
    ]
    assert len(names) == 18 and len(errors) > 50 and max(errors) < 1e-2


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
    assert pytorch_unet.width_of(height) == width and width % 2 == 1
    assert width / height == pytest.approx(959 / 640, abs=1 / height)


class Fixed(nn.Module):  # its logits say `mask`, whatever it is shown
    def __init__(self, mask: Tensor, certainty: float = 100.0) -> None:
        super().__init__()
        self.logits = torch.stack((1 - mask.float(), mask.float()), 1) * certainty

    def forward(self, images: Tensor) -> Tensor:
        return self.logits.to(images.dtype)


def test_the_loss_is_zero_for_the_right_mask_large_for_the_wrong_one_and_keeps_float64():
    mask, images = square(3, 4).long(), torch.zeros(1, 3, 20, 20)
    assert pytorch_unet.loss(Fixed(1 - mask), (images, mask)) > 10
    undecided = pytorch_unet.loss(Fixed(mask, certainty=0.0), (images, mask))
    assert undecided == pytest.approx(
        0.6931 + 1 - dice(torch.full((1, 20, 20), 0.5), mask.float()).item(), abs=1e-3
    )
    for given, computed in ((torch.float64, torch.float64), (torch.bfloat16, torch.float32)):
        right = pytorch_unet.loss(Fixed(mask), (images.to(given), mask))
        assert right.dtype is computed and right == pytest.approx(0, abs=1e-6)


def test_chance_is_the_dice_of_taking_everything_for_the_object(splits):
    data = splits.held_out
    batch = data.finish_batch(default_collate([data[0], data[1]]))  # type: ignore
    total, count = pytorch_unet.metrics(Fixed(torch.ones(2, 32, 47)), batch)["dice"]
    assert pytorch_unet.chance(splits)["dice"] == pytest.approx(float(total) / count)
    assert pytorch_unet.metrics(Fixed(batch[1]), batch)["dice"] == (2.0, 2)


def test_examples_lay_masks_over_the_images(splits):
    shown = pytorch_unet.examples(splits)
    assert len(shown.images) == 3 and all(image.shape == (32, 47, 3) for image in shown.images)
    image, mask = splits.held_out[0]
    assert not (pytorch_unet.overlaid(image, mask) == image.numpy()).all()
    nothing = pytorch_unet.overlaid(image, torch.zeros_like(mask))
    assert (nothing == image.numpy()).all()  # an empty mask changes nothing
