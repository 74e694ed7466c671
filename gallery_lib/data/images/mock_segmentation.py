"""Write mock segmentation data: photographs of coloured shapes, and masks of the warm ones.

The other shapes have cool colours. Images have 640×959 pixels, as large as the Carvana photographs
at the usual training scale of U-Nets. They are JPEG files at the quality of photographs; masks are
PNG files with 255 for the object. The ground is mock ImageNet's noise. Every mask holds both
classes: the objects are painted last, and three of the largest leave a fifth of the ground free. An
image depends only on (seed, split, index).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gallery_lib.config.options import option
from gallery_lib.data import mock_folder
from gallery_lib.data.folders import SPLITS
from gallery_lib.data.images.mock_imagenet import draw, encode, grey_ground
from gallery_lib.system.files import atomic_write

HEIGHT, WIDTH = 640, 959
# version of the drawing: change it whenever render() would draw another image for the same spec
STYLE = 1
_WARM_HUES = (0, 1)  # in tenths of the colour circle: red, orange
_COOL_HUES = (4, 5, 6)


@dataclass(frozen=True)
class SegmentationSpec:
    """Size of a mock segmentation set: images in each split, and the seed of all of them."""

    train: int = 64
    """Training images."""
    val: int = 16
    """Held-out images."""
    seed: int = option(0, minimum=0, maximum=2**63 - 1)
    """Seed of all images."""


def render(seed: int, split: str, index: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return an image and its mask, which is 255 where an object is.

    The image is RGB, uint8 [640, 959, 3]; the mask is uint8 [640, 959].
    """
    sequence = np.random.SeedSequence((seed, SPLITS.index(split), index, 1))
    rng = np.random.Generator(np.random.Philox(sequence))
    canvas, noise = grey_ground(seed, rng, HEIGHT, WIDTH, (40, 60))
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)

    def shape(hues: tuple[int, ...]) -> tuple[tuple[slice, slice], NDArray[np.float32]]:
        hue, outline, texture = rng.choice(hues), rng.integers(10), rng.integers(10)
        return draw(canvas, noise, rng, int(hue), int(outline), int(texture))

    for _ in range(rng.integers(2, 5)):
        shape(_COOL_HUES)
    for _ in range(rng.integers(2, 4)):
        where, covered = shape(_WARM_HUES)
        mask[where][covered >= 0.5] = 255
    np.clip(canvas, 0, 255, out=canvas)
    return canvas.astype(np.uint8), mask


def generate(root: Path | str, spec: SegmentationSpec, progress: bool = True) -> mock_folder.Made:
    """Make ROOT/train/images/*.jpg, ROOT/train/masks/*.png and the same in val/."""
    return mock_folder.make(
        root,
        {"kind": "mock segmentation", "style": STYLE, **dataclasses.asdict(spec)},
        {
            f"{split}/masks/{index:06d}.png": (split, index)
            for split in SPLITS
            for index in range(getattr(spec, split))
        },
        partial(_write, spec.seed),
        progress=progress,
    )


def _write(seed: int, path: Path, split: str, index: int) -> None:
    image, mask = render(seed, split, index)
    images = path.parents[1] / "images"
    images.mkdir(exist_ok=True)
    with atomic_write(images / f"{path.stem}.jpg", "wb") as file:
        file.write(encode(image))
    with atomic_write(path, "wb") as file:
        Image.fromarray(mask).save(file, "PNG")
