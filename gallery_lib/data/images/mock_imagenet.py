"""Mock ImageNet: JPEG files in ImageNet's own layout and of its decoding cost.

A class is a combination of hue × outline × texture, ten of each, so 1000 classes exist. Every
texture and outline looks the same in a mirror, since training flips images. Within a class, size,
place, number, rotation, lighting, ground and shades differ from image to image. The ground's
amplitude spectrum falls like 1/f^1.5. With JPEG quality 96 and 4:4:4 that gives files of ImageNet's
size (mean ≈ 106 KB) and hence ImageNet's decoding cost.

An image depends only on the spec's seed, the split and the index: each has its own counter-based
generator (Philox). The expensive noise is made once per process as large tiles. The ground of each
image is a mirrored or transposed crop of a tile. The same bytes are not promised on another CPU
type or NumPy release.
"""

from __future__ import annotations

import colorsys
import re
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gallery_lib.config.options import option
from gallery_lib.data import mock_folder
from gallery_lib.data.folders import SPLITS
from gallery_lib.system.files import atomic_write

MAX_CLASSES = 1000
JPEG_QUALITY = 96
JPEG_SUBSAMPLING = "444"
# version of the drawing: change it whenever render() would draw another image for the same spec
STYLE = 1

_TILE_SIDE = 1024
_TILES = 3
_ANGLES = np.linspace(0, 2 * np.pi, 720, endpoint=False)
_HUES = ["red", "orange", "lime", "green", "jade", "cyan", "azure", "blue", "purple", "pink"]
_OUTLINES = (
    *("discs", "triangles", "squares", "stars", "bars"),
    *("crosses", "clovers", "cogs", "half-discs", "keyholes"),
)
_TEXTURES = (
    *("striped across", "finely striped across", "striped down", "finely striped down"),
    *("chequered", "finely chequered", "chequered aslant", "finely chequered aslant"),
    *("ringed", "finely ringed"),
)


@dataclass(frozen=True)
class MockSpec:
    """Size of a mock data set: number of classes, images per class in each split, and the seed."""

    classes: int = option(10, minimum=2, maximum=MAX_CLASSES)
    """Number of classes, 2 to 1000."""
    train_per_class: int = 64
    """Training images per class."""
    val_per_class: int = 20
    """Validation images per class."""
    seed: int = option(0, minimum=0, maximum=2**63 - 1)
    """Seed of all images."""

    def per_class(self, split: str) -> int:
        """Return the number of images per class in `split`."""
        return self.train_per_class if split == "train" else self.val_per_class


def class_id(label: int) -> str:
    """Return the made-up WordNet id of class `label`; class 0 is n00000001."""
    return f"n{label + 1:08d}"


def class_in_words(wnid: str) -> str:
    """Return what a class of mock ImageNet looks like: `red discs, striped across`; others' id."""
    match = re.fullmatch(r"n(\d{8})", wnid)
    label = int(match[1]) - 1 if match else -1
    if not 0 <= label < MAX_CLASSES:
        return wnid
    hue, outline, texture = look(label)
    return f"{_HUES[hue]} {_OUTLINES[outline]}, {_TEXTURES[texture]}"


def look(label: int) -> tuple[int, int, int]:
    """Return hue, outline and texture of a class, 0 to 9 each."""
    a, b, c = (label // d % 10 for d in (1, 10, 100))
    # ten classes already differ in all three
    return a, (a + b) % 10, (a + b + c) % 10


def render(spec: MockSpec, split: str, index: int) -> NDArray[np.uint8]:
    """Return image `index` of `split` as uint8 [H, W, 3], RGB."""
    seed = np.random.SeedSequence((spec.seed, SPLITS.index(split), index))
    rng = np.random.Generator(np.random.Philox(seed))
    hue, outline, texture = look(index // spec.per_class(split))

    canvas, noise = grey_ground(spec.seed, rng, *_size(rng), (50, 72))
    for _ in range(rng.integers(4, 8)):
        draw(canvas, noise, rng, hue, outline, texture)
    np.clip(canvas, 0, 255, out=canvas)
    return canvas.astype(np.uint8)


def encode(image: NDArray[np.uint8]) -> bytes:
    """Encode `image` (uint8 [H, W, 3], C-contiguous) as JPEG bytes of the data set's quality."""
    import simplejpeg

    return bytes(
        simplejpeg.encode_jpeg(
            image, quality=JPEG_QUALITY, colorspace="RGB", colorsubsampling=JPEG_SUBSAMPLING
        )
    )


def _uniform(rng: np.random.Generator, low: float, high: float) -> np.float32:
    return np.float32(rng.uniform(low, high))


def grey_ground(
    seed: int, rng: np.random.Generator, height: int, width: int, contrast: tuple[int, int]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return a canvas lit from a random side, and its noise, float32 [height, width, 3] each.

    The canvas is nearly grey, because colour identifies the class.
    """
    noise = _noise(seed, rng, height, width)
    canvas = np.multiply(noise, _uniform(rng, *contrast), order="C")
    canvas += (rng.uniform(90, 166) + rng.uniform(-18, 18, 3)).astype(np.float32)
    canvas += np.linspace(-1, 1, width, dtype=np.float32)[:, None] * _uniform(rng, -30, 30)
    canvas += np.linspace(-1, 1, height, dtype=np.float32)[:, None, None] * _uniform(rng, -30, 30)
    return canvas, noise


def _size(rng: np.random.Generator) -> tuple[int, int]:
    """Draw an image's size: 500 × 375 or 500 × 333 for most, a quarter of them upright."""
    long = 500 if rng.random() < 0.7 else int(rng.integers(360, 641))
    short = round(long * rng.choice([0.75, 0.667, 0.8, 1.0], p=[0.6, 0.22, 0.1, 0.08]))
    return (long, short) if rng.random() < 0.25 else (short, long)


@lru_cache(maxsize=2)
def _tiles(seed: int) -> NDArray[np.float32]:
    """Return periodic noise of amplitude ∝ 1/f^1.5 and unit variance, [_TILES, side, side, 3]."""
    n = _TILE_SIDE
    frequency = np.hypot(np.fft.fftfreq(n)[:, None], np.fft.rfftfreq(n)[None, :])
    frequency[0, 0] = np.inf
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, 2))))
    planes = []
    for _ in range(_TILES + 3):
        spectrum = (
            rng.standard_normal(frequency.shape) + 1j * rng.standard_normal(frequency.shape)
        ) / frequency**1.5
        plane = np.fft.irfft2(spectrum, (n, n))
        planes.append((plane / plane.std()).astype(np.float32))
    chroma = np.stack(planes[_TILES:], axis=-1) * np.float32(0.22)
    return np.stack([plane[..., None] + chroma for plane in planes[:_TILES]])


def _noise(seed: int, rng: np.random.Generator, height: int, width: int) -> NDArray[np.float32]:
    tile = _tiles(seed)[rng.integers(_TILES)]
    if rng.random() < 0.5:
        tile = tile.transpose(1, 0, 2)
    top, left = rng.integers(_TILE_SIDE - height + 1), rng.integers(_TILE_SIDE - width + 1)
    crop = tile[top : top + height, left : left + width]
    flip_y, flip_x = rng.choice([-1, 1], 2)
    return crop[::flip_y, ::flip_x, rng.permutation(3)]


@lru_cache(maxsize=1)
def _outlines() -> NDArray[np.float32]:
    """Return the radius of the ten outlines at each of _ANGLES, at most 1: float32 [10, angles]."""

    def polygon(corners: int, star: float = 1.0) -> NDArray[np.float64]:
        """Return a regular polygon, or the star with inner corners at radius `star` < 1."""
        half = np.pi / corners
        fold = np.abs((_ANGLES + half) % (2 * half) - half)  # angle from the nearest corner
        if star == 1.0:
            return np.cos(half) / np.cos(half - fold)
        return star * np.sin(half) / (np.sin(half - fold) + star * np.sin(fold))

    cos, sin = np.abs(np.cos(_ANGLES)), np.abs(np.sin(_ANGLES))
    shapes = [
        np.ones_like(_ANGLES),  # disc
        polygon(3),
        polygon(4),
        polygon(5, star=0.42),
        1 / np.maximum(cos, 3.2 * sin),  # bar
        np.minimum(1, 0.28 / np.maximum(np.minimum(cos, sin), 1e-3)),  # cross
        0.62 + 0.38 * np.cos(3 * _ANGLES),  # three leaves
        0.8 + 0.2 * np.cos(8 * _ANGLES),  # cog
        np.where(np.sin(_ANGLES) > 0, 1.0, 0.12),  # half disc
        np.minimum(1, 0.35 / np.maximum(np.abs(np.sin(_ANGLES / 2)), 1e-3)),  # keyhole
    ]
    return np.stack([shape / shape.max() for shape in shapes]).astype(np.float32)


def draw(
    canvas: NDArray[np.float32],
    noise: NDArray[np.float32],
    rng: np.random.Generator,
    hue: int,
    outline: int,
    texture: int,
) -> tuple[tuple[slice, slice], NDArray[np.float32]]:
    """Paint one shape into `canvas` in place; some of the ground's noise shines through.

    Returns the region of the shape, and the share of each of its pixels that the shape covers.
    """
    height, width = canvas.shape[:2]
    radius = min(height, width) * rng.uniform(0.16, 0.34)
    x0, y0 = rng.uniform(0.05, 0.95) * width, rng.uniform(0.05, 0.95) * height
    left, right = max(0, int(x0 - radius)), min(width, int(x0 + radius) + 2)
    top, bottom = max(0, int(y0 - radius)), min(height, int(y0 + radius) + 2)
    x = (np.arange(left, right) - x0).astype(np.float32)[None, :]
    y = (np.arange(top, bottom) - y0).astype(np.float32)[:, None]

    distance = np.sqrt(x * x + y * y)  # [h, w]
    turn = rng.uniform(0, len(_ANGLES))
    angle = (np.arctan2(y, x) * np.float32(len(_ANGLES) / (2 * np.pi)) + np.float32(turn)).astype(
        np.int32
    ) % len(_ANGLES)
    mask = np.clip(
        _outlines()[outline][angle] * np.float32(radius) - distance + np.float32(0.5), 0, 1
    )  # [h, w], soft edge

    wave = np.float32(
        2 * np.pi / (rng.uniform(0.9, 1.1) * (14 if texture % 2 else 34) * min(height, width) / 375)
    )
    phase = _uniform(rng, 0, 6.28)
    pattern = (
        lambda: np.sin(wave * y + phase),  # horizontal stripes
        lambda: np.sin(wave * x + phase),  # vertical stripes
        lambda: np.sin(wave * x + phase) * np.sin(wave * y + phase),  # chequers
        lambda: (np.cos(wave * x) - np.cos(wave * y)) / 2,  # chequers turned by 45°
        lambda: np.sin(wave * distance + phase),  # rings
    )[texture // 2]()

    shade = colorsys.hsv_to_rgb(
        (hue + rng.uniform(-0.35, 0.35)) / 10 % 1, rng.uniform(0.6, 0.95), rng.uniform(0.65, 1.0)
    )
    colour = np.array(shade, dtype=np.float32) * 255
    opacity = (mask * _uniform(rng, 0.75, 0.95))[..., None]
    # broadcasts to [h, w, 3]
    paint = colour * (np.float32(0.75) + np.float32(0.3) * pattern)[..., None]
    where = (slice(top, bottom), slice(left, right))
    region = canvas[where]
    region += opacity * (paint - region + np.float32(12) * noise[where])
    return where, mask


def generate(root: Path | str, spec: MockSpec, progress: bool = True) -> mock_folder.Made:
    """Make ROOT/train/nXXXXXXXX/*.JPEG and ROOT/val/nXXXXXXXX/*.JPEG, as `mock_folder.make`."""
    jobs: dict[str, tuple[str, int]] = {}
    for label in range(spec.classes):
        wnid = class_id(label)
        for number in range(spec.train_per_class):
            index = label * spec.train_per_class + number
            jobs[f"train/{wnid}/{wnid}_{number}.JPEG"] = ("train", index)
        for index in range(label * spec.val_per_class, (label + 1) * spec.val_per_class):
            jobs[f"val/{wnid}/ILSVRC2012_val_{index + 1:08d}.JPEG"] = ("val", index)
    record = {"kind": "mock-imagenet", "style": STYLE, "spec": asdict(spec)}
    return mock_folder.make(root, record, jobs, partial(_write, spec), progress=progress)


def _write(spec: MockSpec, path: Path, split: str, index: int) -> None:
    with atomic_write(path, "wb") as file:
        file.write(encode(render(spec, split, index)))
