"""Choose which part of an image a training or evaluation step sees.

The random resized crop is the usual one of ImageNet training (Szegedy et al., "Going Deeper with
Convolutions", 2014). torchvision's RandomResizedCrop has the same distribution. The centre crop is
torchvision's Resize(size · 256/224) + CenterCrop(size), taken from the full image in one step. This
file holds only geometry and touches no pixels.
"""

from __future__ import annotations

import math

import numpy as np

SCALE = (0.08, 1.0)  # crop area over image area
RATIO = (3 / 4, 4 / 3)  # crop width over height
CENTRE_FRACTION = 224 / 256
_ATTEMPTS = 10


def random_resized_crop(
    rng: np.random.Generator, height: int, width: int
) -> tuple[int, int, int, int]:
    """Return a random crop of a height × width image: (top, left, height, width) in pixels."""
    narrowest, widest = math.log(RATIO[0]), math.log(RATIO[1])
    for area, ratio in rng.random((2, _ATTEMPTS)).T.tolist():
        area = height * width * (SCALE[0] + area * (SCALE[1] - SCALE[0]))
        ratio = math.exp(narrowest + ratio * (widest - narrowest))
        crop_width, crop_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            return (
                int(rng.integers(height - crop_height + 1)),
                int(rng.integers(width - crop_width + 1)),
                crop_height,
                crop_width,
            )
    # no attempt fitted, as in a very long image: take the largest central crop within RATIO
    crop_width, crop_height = (
        min(width, round(height * RATIO[1])),
        min(height, round(width / RATIO[0])),
    )
    crop_width, crop_height = max(1, crop_width), max(1, crop_height)
    return (height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width


def centre_crop(height: int, width: int) -> tuple[int, int, int, int]:
    """Return the central square of an image: (top, left, height, width) in pixels.

    Its side is 224/256 of the shorter side of the image.
    """
    side = max(1, round(min(height, width) * CENTRE_FRACTION))
    return round((height - side) / 2), round((width - side) / 2), side, side
