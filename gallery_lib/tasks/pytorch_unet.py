"""U-Net on photographs with masks: an image in, a class per pixel out.

Ronneberger, Fischer, Brox, "U-Net: Convolutional Networks for Biomedical Image Segmentation", 2015.
An encoder halves the image four times while it doubles the channels. A decoder goes back up, and
each of its levels also sees the encoder's output of the same size.

The form is that of TorchBench's `pytorch_unet`: padded convolutions, so that the output is as large
as the input, batch norm, two classes, 640×959 pixels and one image a step. It enlarges bilinearly,
so that the lowest two levels both have 512 channels. An image of any size will do. Where halving
rounds down (959 → 479 → 239 …), the decoder's side is padded to the encoder's. Unlike TorchBench's,
the masks are not all zero.

The dice coefficient of two masks is 2·|A ∩ B| / (|A| + |B|), the F1 score of their pixels. As a
loss it takes probabilities instead of masks (Milletari et al., "V-Net", 2016). It is taken image by
image, so that the mean over processes is the mean over images.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gallery_lib.config import TrainConfig
from gallery_lib.data.images.segmentation_folder import SegmentationFolder
from gallery_lib.optim import OptimizerSpec
from gallery_lib.system import paths
from gallery_lib.tasks.task import FULL, QUICK, Pictures, Splits, Task

# channels of the encoder's levels, from the full size to a sixteenth of it
WIDTHS = (64, 128, 256, 512, 512)


class DoubleConvolution(nn.Sequential):
    """(3×3 convolution, batch norm, ReLU) twice: [N, inputs, H, W] → [N, outputs, H, W]."""

    def __init__(self, inputs: int, outputs: int, between: int | None = None) -> None:
        """Build two convolutions, with `between` channels (by default `outputs`) between them."""
        between = between or outputs
        super().__init__(
            nn.Conv2d(inputs, between, 3, padding=1),
            nn.BatchNorm2d(between),
            nn.ReLU(inplace=True),
            nn.Conv2d(between, outputs, 3, padding=1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )


class Up(nn.Module):
    """One level up in the decoder.

    `below` [N, C, h, w] is doubled, padded to `beside` [N, C, H, W], joined to it, and convolved.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        """Build the level's convolutions, for `inputs` channels after the join."""
        super().__init__()
        self.convolutions = DoubleConvolution(inputs, outputs, between=inputs // 2)

    def forward(self, below: Tensor, beside: Tensor) -> Tensor:
        """Return the level's result, [N, outputs, H, W]."""
        # [N, C, 2h, 2w]
        larger = F.interpolate(below, scale_factor=2.0, mode="bilinear", align_corners=True)
        missing_rows = beside.shape[2] - larger.shape[2]  # 0 or 1, since halving rounds down
        missing_columns = beside.shape[3] - larger.shape[3]
        larger = F.pad(larger, (0, missing_columns, 0, missing_rows))
        return self.convolutions(torch.cat((beside, larger), dim=1))


class UNet(nn.Module):
    """Images [N, 3, H, W] → logits [N, classes, H, W]; H and W are at least 16."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        self.first = DoubleConvolution(3, WIDTHS[0])
        self.down = nn.ModuleList(DoubleConvolution(a, b) for a, b in itertools.pairwise(WIDTHS))
        # Each level up joins its own channels with as many from below, and leaves as many as the
        # next one has.
        sizes = ((512, 256), (256, 128), (128, 64), (64, 64))
        self.up = nn.ModuleList(Up(2 * width, next_width) for width, next_width in sizes)
        self.classify = nn.Conv2d(WIDTHS[0], classes, 1)
        _initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of each pixel."""
        x = self.first(images)
        beside = []
        for level in self.down:
            beside.append(x)
            x = level(F.max_pool2d(x, 2))
        for level in self.up:
            x = level(x, beside.pop())
        return self.classify(x)


def _initialize(model: nn.Module) -> None:
    """Initialise the 3×3 convolutions so that activations keep their size from layer to layer.

    He et al., "Delving Deep into Rectifiers", 2015. While training, batch norm also sees to that.
    With these weights the untrained model can be evaluated, too.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3):
            nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")


# Images float [N, 3, H, W], masks int64 [N, H, W], 1 where an object is.
Batch = tuple[Tensor, Tensor]
# A colour that neither photographs nor the mock data have much of.
OVERLAY = np.array([255, 0, 160], np.float32)


def width_of(height: int) -> int:
    """Return the width in pixels that keeps 959:640, rounded up to an odd number: it is padded."""
    return height * 959 // 640 | 1


def images(config: TrainConfig) -> Splits:
    """Return the images of `config.data_dir`, else the small mock set, `config.image_size` high."""
    root = config.data_dir or str(paths.data_dir("segmentation-small"))
    assert config.image_size is not None
    size = (config.image_size, width_of(config.image_size))
    return Splits(
        train=SegmentationFolder(root, "train", size, train=True, seed=config.seed),
        held_out=SegmentationFolder(root, "val", size, train=False, seed=config.seed),
    )


def dice(a: Tensor, b: Tensor) -> Tensor:
    """Return the dice coefficients [N] of masks or probabilities [N, H, W]; 1 for empty ones."""
    overlap, total = (a * b).flatten(1).sum(1), a.flatten(1).sum(1) + b.flatten(1).sum(1)
    return (2 * overlap + 1) / (total + 1)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return cross-entropy of logits [N, 2, H, W] plus 1 − dice of the object's probabilities.

    The arithmetic is in fp32 under autocast too.
    """
    inputs, masks = batch
    logits = model(inputs)
    logits = logits if logits.dtype is torch.float64 else logits.float()
    return (
        F.cross_entropy(logits, masks)
        + 1
        - dice(logits.softmax(1)[:, 1], masks.to(logits.dtype)).mean()
    )


def metrics(model: nn.Module, batch: Batch) -> dict[str, tuple[Tensor, int]]:
    """Return the sum of the dice coefficients of one batch, and their number."""
    inputs, masks = batch
    logits = model(inputs)
    predicted = logits[:, 1] > logits[:, 0]  # [N, H, W]
    return {"dice": (dice(predicted.double(), masks.double()).sum(), len(masks))}


def _spread(data: Any, most: int) -> list[Any]:
    """Return at most so many items, from the first to the last."""
    return [data[int(i)] for i in np.linspace(0, len(data) - 1, min(most, len(data)))]


def chance(splits: Splits, most: int = 64) -> dict[str, float]:
    """Return the dice coefficient of taking every pixel of `most` images for the object."""
    masks = torch.stack([mask for _, mask in _spread(splits.held_out, most)]).double()
    return {"dice": float(dice(torch.ones_like(masks), masks).mean())}


def overlaid(image: Tensor, mask: Tensor) -> np.ndarray:
    """Return the image, uint8 [H, W, 3], coloured where the mask [H, W] is set, with an outline."""
    inside = mask.bool().numpy()
    outline = np.zeros_like(inside)
    outline[:, 1:] |= inside[:, 1:] != inside[:, :-1]
    outline[1:] |= inside[1:] != inside[:-1]
    strength = np.where(outline, 1.0, np.where(inside, 0.45, 0.0)).astype(np.float32)[..., None]
    return (image.numpy() * (1 - strength) + OVERLAY * strength).astype(np.uint8)


def examples(splits: Splits, count: int = 8) -> Pictures:
    """Return training images with their masks."""
    data: Any = splits.train
    samples = _spread(data, count)
    height, width = samples[0][1].shape
    return Pictures(
        [overlaid(image, mask) for image, mask in samples],
        [f"{float(mask.float().mean()):.0%} object" for _, mask in samples],
        f"{len(samples)} of {len(data)} training images, augmented, {width}×{height}, with their "
        "masks laid over them in magenta",
        columns=4,
    )


def build_model() -> nn.Module:
    """Return U-Net for two classes, background and object."""
    return UNet(classes=2)


TASK = Task(
    name="pytorch_unet",
    title="U-Net",
    domain="computer vision",
    batch_size=1,
    image_size=640,
    image_width=width_of,
    build_model=build_model,
    data=images,
    loss=loss,
    metrics=metrics,
    chance=chance,
    optimizer=OptimizerSpec("RMSprop", lr=1e-4, weight_decay=1e-8, arguments={"momentum": 0.9}),
    data_commands=("mock_segmentation", "check_segmentation"),
    data_examples=examples,
    parameters=17_267_458,
    activation_bytes_per_sample=3_380_000_000,
    # 610,112 multiply-adds a pixel (18 convolutions of 3×3, the 1×1, each divided by the area its
    # level is reduced by), times two operations, 640·959 pixels, and three for forward and backward
    flops_per_sample=2.25e12,
    quick=QUICK | {"batch_size": 1, "image_size": 128},
    full=FULL | {"batch_size": 8, "image_size": 640},
)
