"""Shared parts of segmentation tasks: images with masks, cross-entropy and dice loss, dice metric.

The dice coefficient of two masks is 2·|A ∩ B| / (|A| + |B|), the F1 score of their pixels. As a
loss it takes probabilities instead of masks (Milletari et al., "V-Net", 2016). It is taken image by
image, so that the mean over processes is the mean over images.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gallery_lib.config import TrainConfig
from gallery_lib.data.images.segmentation_folder import SegmentationFolder
from gallery_lib.system import paths
from gallery_lib.tasks.task import Pictures, Splits

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


def _predicted(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return the model's masks, bool [N, H, W]."""
    logits = model(inputs)
    return logits[:, 1] > logits[:, 0]


def metrics(model: nn.Module, batch: Batch) -> dict[str, tuple[Tensor, int]]:
    """Return the sum of the dice coefficients of one batch, and their number."""
    inputs, masks = batch
    return {"dice": (dice(_predicted(model, inputs).double(), masks.double()).sum(), len(masks))}


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
