"""Image files of every kind are decoded as torchvision does it, and their damage is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets.folder import default_loader

from gallery_lib.data.images.check import examine
from gallery_lib.data.images.decode import decode

NOISE = np.random.default_rng(0).integers(0, 255, (90, 120, 3), dtype=np.uint8)

# Name: ending, Pillow's mode, options of saving
KINDS: dict[str, tuple[str, str, dict[str, object]]] = {
    "JPEG": (".jpg", "RGB", {}),
    "progressive JPEG": (".jpeg", "RGB", {"progressive": True}),
    "grey JPEG": (".jpg", "L", {}),
    "CMYK JPEG": (".jpg", "CMYK", {}),
    "PNG": (".png", "RGB", {}),
    "palette PNG": (".png", "P", {}),
    "alpha PNG": (".png", "RGBA", {}),
    "16-bit PNG": (".png", "I;16", {}),
    "bilevel PNG": (".png", "1", {}),
    "WebP": (".webp", "RGB", {}),
    "lossless alpha WebP": (".webp", "RGBA", {"lossless": True}),
    "BMP": (".bmp", "RGB", {}),
    "TIFF": (".tif", "RGB", {}),
    "LZW TIFF": (".tiff", "RGB", {"compression": "tiff_lzw"}),
    "CMYK TIFF": (".tif", "CMYK", {}),
    "16-bit TIFF": (".tif", "I;16", {}),
    "PPM": (".ppm", "RGB", {}),
    "PGM": (".pgm", "L", {}),
}


def picture(mode: str) -> Image.Image:
    if mode == "I;16":
        return Image.fromarray(NOISE[..., 0].astype(np.uint16) * 257)
    image = Image.fromarray(NOISE)
    if mode == "RGBA":
        image.putalpha(Image.fromarray(NOISE[..., 0]))
    return image.convert(mode)


def write(folder: Path, kind: str, **more: object) -> Path:
    ending, mode, options = KINDS[kind]
    path = folder / f"image{ending}"
    picture(mode).save(path, **options, **more)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_pixels_are_those_of_torchvision_s_loader_and_nothing_is_found(
    tmp_path: Path, kind: str
) -> None:
    path = write(tmp_path, kind)
    pixels, _ = decode(
        memoryview(bytearray(path.read_bytes())), lambda height, width: (0, 0, height, width)
    )
    assert np.array_equal(pixels, np.asarray(default_loader(path)))
    assert examine(path) is None


def test_an_image_is_not_turned_as_exif_says_and_the_first_frame_counts(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees
    turned = write(tmp_path, "JPEG", exif=exif)
    frames = tmp_path / "frames.tif"
    picture("RGB").save(frames, save_all=True, append_images=[Image.new("RGB", (10, 10))])
    for path in (turned, frames):
        pixels, _ = decode(
            memoryview(bytearray(path.read_bytes())), lambda height, width: (0, 0, height, width)
        )
        assert pixels.shape == (90, 120, 3) and np.array_equal(
            pixels, np.asarray(default_loader(path))
        )
        assert examine(path) is None


@pytest.mark.parametrize("kind", KINDS)
def test_half_a_file_is_damaged(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, kind)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert examine(path)


def middle_zeroed(data: bytes) -> bytes:
    half = len(data) // 2
    return data[:half] + bytes(200) + data[half + 200 :]


@pytest.mark.parametrize(
    ("kind", "damage", "said"),
    [
        ("JPEG", middle_zeroed, "decodes with a warning: Corrupt JPEG data"),
        ("progressive JPEG", middle_zeroed, "decodes with a warning: Corrupt JPEG data"),
        ("grey JPEG", middle_zeroed, "decodes with a warning: Corrupt JPEG data"),
        ("CMYK JPEG", middle_zeroed, "decodes with a warning: Corrupt JPEG data"),
        ("JPEG", lambda data: data[:-1], "truncated"),
        ("PNG", middle_zeroed, "broken data stream"),
        ("PNG", lambda data: data.replace(b"IDAT", b"IDAT\0", 1)[:-1], ""),
        ("LZW TIFF", middle_zeroed, "decoder error"),
        ("JPEG", lambda data: b"<html>not found</html>", "cannot identify image file"),
        ("JPEG", lambda data: b"", "cannot identify image file"),
    ],
)
def test_damage_inside_is_found(
    tmp_path: Path, kind: str, damage: Callable[[bytes], bytes], said: str
) -> None:
    path = write(tmp_path, kind)
    path.write_bytes(damage(path.read_bytes()))
    found = examine(path)
    assert found is not None and said in found and "BytesIO" not in found


def test_a_camera_s_file_of_several_jpegs_is_in_order(tmp_path: Path) -> None:
    path = tmp_path / "image.jpg"
    picture("RGB").save(path, "MPO", save_all=True, append_images=[picture("RGB").resize((60, 40))])
    assert examine(path) is None
