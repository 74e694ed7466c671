"""Write mock segmentation data: photographs of coloured shapes, and masks of the warm ones.

The other shapes have cool colours. Images have 640×959 pixels, as large as the Carvana photographs
at the usual training scale of U-Nets. They are JPEG files at the quality of photographs; masks are
PNG files with 255 for the object. The ground is mock ImageNet's noise. Every mask holds both
classes: the objects are painted last, and three of the largest leave a fifth of the ground free. An
image depends only on (seed, split, index).
"""

from __future__ import annotations

import dataclasses
import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gallery_lib.config.options import check_whole_numbers
from gallery_lib.data import mock_folder
from gallery_lib.data.images.mock_render import draw, encode, ground

SPLITS = ("train", "val")
HEIGHT, WIDTH = 640, 959
# version of the drawing: change it whenever render() would draw another image for the same spec
STYLE = 1
_WARM_HUES = (0, 1)  # in tenths of the colour circle: red, orange
_COOL_HUES = (4, 5, 6)


@dataclass(frozen=True)
class SegmentationSpec:
    """Size of a mock segmentation set: images in each split, and the seed of all of them."""

    train: int = 64
    val: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole_numbers(
            self, {"train": (1, 1_000_000), "val": (1, 1_000_000), "seed": (0, 2**63 - 1)}
        )


def render(seed: int, split: str, index: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return an image and its mask, which is 255 where an object is.

    The image is RGB, uint8 [640, 959, 3]; the mask is uint8 [640, 959].
    """
    rng = np.random.Generator(
        np.random.Philox(np.random.SeedSequence((seed, SPLITS.index(split), index, 1)))
    )
    noise = ground(seed, rng, HEIGHT, WIDTH)
    canvas = np.multiply(noise, np.float32(rng.uniform(40, 60)), order="C")
    canvas += (rng.uniform(90, 166) + rng.uniform(-18, 18, 3)).astype(np.float32)
    # light from a side
    canvas += np.linspace(-1, 1, WIDTH, dtype=np.float32)[:, None] * np.float32(
        rng.uniform(-30, 30)
    )
    canvas += np.linspace(-1, 1, HEIGHT, dtype=np.float32)[:, None, None] * np.float32(
        rng.uniform(-30, 30)
    )
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    for _ in range(rng.integers(2, 5)):
        draw(
            canvas,
            noise,
            rng,
            int(rng.choice(_COOL_HUES)),
            int(rng.integers(10)),
            int(rng.integers(10)),
        )
    for _ in range(rng.integers(2, 4)):
        where, covered = draw(
            canvas,
            noise,
            rng,
            int(rng.choice(_WARM_HUES)),
            int(rng.integers(10)),
            int(rng.integers(10)),
        )
        mask[where][covered >= 0.5] = 255
    np.clip(canvas, 0, 255, out=canvas)
    return canvas.astype(np.uint8), mask


def generate(root: Path | str, spec: SegmentationSpec) -> mock_folder.Made:
    """Make the data set `spec` in `root`, unless it is there already.

    The files are ROOT/train/images/*.jpg and ROOT/train/masks/*.png, and the same in val/. Raises
    InputError when `root` holds anything else, RunFailed when writing fails.
    """

    def fill(folder: Path) -> None:
        for split in SPLITS:
            for kind in ("images", "masks"):
                (folder / split / kind).mkdir(parents=True)
        jobs = [(split, index) for split in SPLITS for index in range(getattr(spec, split))]
        render(spec.seed, *jobs[0])  # caches the noise tiles that all threads share
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda job: _write(folder, spec.seed, *job), jobs))

    return mock_folder.make(
        root, {"kind": "mock segmentation", "style": STYLE, **dataclasses.asdict(spec)}, fill
    )


def _write(folder: Path, seed: int, split: str, index: int) -> None:
    image, mask = render(seed, split, index)
    (folder / split / "images" / f"{index:06d}.jpg").write_bytes(encode(image))
    png = io.BytesIO()
    Image.fromarray(mask).save(png, "PNG")
    (folder / split / "masks" / f"{index:06d}.png").write_bytes(png.getvalue())
