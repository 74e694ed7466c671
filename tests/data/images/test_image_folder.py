"""The image data set for training: same images for any worker, every file kind, named errors.

An error names its file.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from refusal import refused
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from gallery_lib.data.images.decode import centre_crop, decode, load, random_resized_crop
from gallery_lib.data.images.image_folder import MEAN, STANDARD_DEVIATION, ImageFolder, finish_batch


def test_items_and_batches_have_the_promised_shapes_and_labels(tiny_root: Path) -> None:
    dataset = ImageFolder(tiny_root, "train", 64, train=True, seed=0)
    image, label = dataset[17]
    assert (image.shape, image.dtype, label) == ((64, 64, 3), torch.uint8, 2)
    images, labels = next(iter(DataLoader(dataset, 18)))
    assert (images.shape, images.dtype) == ((18, 64, 64, 3), torch.uint8)
    assert labels.tolist() == [0] * 6 + [1] * 6 + [2] * 6
    assert dataset.classes == ["n00000001", "n00000002", "n00000003"]
    assert dataset.path(17).is_file() and dataset.path(17).parent.name == "n00000003"


def jpeg(size: tuple[int, int], **options: object) -> bytes:
    file = io.BytesIO()
    noise = np.random.default_rng(1).integers(
        0, 255, (size[1] // 8, size[0] // 8, 3), dtype=np.uint8
    )
    Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC).save(file, "JPEG", **options)
    return file.getvalue()


# Sizes at which neither side rounds the crop.
@pytest.mark.parametrize("size", [(512, 512), (768, 512), (512, 768)])
def test_evaluation_shows_what_torchvision_s_resize_and_centre_crop_show(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    path = tmp_path / "image.JPEG"
    path.write_bytes(jpeg(size, quality=95))
    reference = v2.Compose([v2.Resize(256), v2.CenterCrop(224), v2.PILToTensor()])
    with Image.open(path) as image:
        expected = reference(image).permute(1, 2, 0).float()
    difference = (load(path, centre_crop, (224, 224)).float() - expected).abs()
    assert difference.mean() < 0.5  # of 255: what is left is rounding between two resizers
    assert (expected.roll(1, 1) - expected).abs().mean() > 5  # one pixel off would not pass


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize(
    "options", [{}, {"progressive": True}, {"restart_marker_blocks": 7}, {"optimize": True}]
)
def test_leaving_a_jpeg_early_gives_exactly_the_rows_of_the_whole(
    subsampling: str, options: dict[str, object]
) -> None:
    data = jpeg((301, 203), quality=90, subsampling=subsampling, **options)
    whole = np.asarray(Image.open(io.BytesIO(data)))
    for top, height in ((0, 1), (3, 30), (50, 78), (10, 150), (0, 203), (202, 1)):
        pixels, box = decode(
            memoryview(bytearray(data)), lambda h, w, top=top, height=height: (top, 0, height, w)
        )  # type: ignore[misc]
        assert box == (top, 0, height, 301)
        assert np.array_equal(pixels[top : top + height], whole[top : top + height])
        assert options.get("progressive") or height > 100 or len(pixels) < 203 or top > 100


def test_mirroring_flips_left_and_right_alone(tiny_root: Path) -> None:
    path = next(tiny_root.rglob("*.JPEG"))
    plain, mirrored = (
        load(path, lambda h, w: (5, 9, 200, 150), (40, 40), mirror=m) for m in (False, True)
    )
    assert torch.equal(plain.flip(1), mirrored) and not torch.equal(plain, mirrored)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:2000], lambda data: b"", lambda data: b"<html>not found</html>"]
)
def test_a_damaged_file_raises_an_error_that_names_it(tiny_copy: Path, damage) -> None:  # type: ignore[no-untyped-def]
    dataset = ImageFolder(tiny_copy, "train", 32, train=True, seed=0)
    path = dataset.path(4)
    path.write_bytes(damage(path.read_bytes()))
    with refused(path):
        dataset[4]
    with refused(None, path):  # through a worker process, too
        list(DataLoader(dataset, 5, num_workers=1))
    path.unlink()
    with refused(path, "No such file"):
        dataset[4]


def test_random_crops_cover_the_stated_areas_and_ratios_and_stay_inside() -> None:
    rng = np.random.default_rng(0)
    crops = np.array([random_resized_crop(rng, 375, 500) for _ in range(4000)])
    top, left, height, width = crops.T
    assert min(top.min(), left.min()) >= 0
    assert (top + height).max() <= 375 and (left + width).max() <= 500
    for rows, columns in ((1, 1), (1, 900), (900, 1), (40, 41)):
        for _ in range(50):
            y, x, h, w = random_resized_crop(rng, rows, columns)
            assert min(y, x) >= 0 and min(h, w) >= 1 and y + h <= rows and x + w <= columns
    area, ratio = height * width / (375 * 500), width / height
    assert area.min() < 0.1 and area.max() > 0.95 and area.min() > 0.07
    assert 0.74 < ratio.min() < 0.78 and 1.28 < ratio.max() < 1.35
    image = torch.empty(3, 375, 500)
    reference = [
        v2.RandomResizedCrop.make_params(v2.RandomResizedCrop(8), [image]) for _ in range(1000)
    ]
    for name, values in (("top", top), ("left", left), ("height", height), ("width", width)):
        # The limit is 4 standard errors.
        assert abs(values.mean() - np.mean([params[name] for params in reference])) < 14


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_finish_batch_normalises_like_torchvision(
    memory_format: torch.memory_format, dtype: torch.dtype
) -> None:
    images = torch.randint(0, 256, (4, 24, 24, 3), dtype=torch.uint8)
    before, labels = images.clone(), torch.arange(4)
    result, same_labels = finish_batch((images, labels), memory_format, dtype)
    expected = v2.functional.normalize(
        images.permute(0, 3, 1, 2).float() / 255, MEAN, STANDARD_DEVIATION
    )
    assert (result.shape, result.dtype) == ((4, 3, 24, 24), dtype)
    assert result.is_contiguous(memory_format=memory_format)
    torch.testing.assert_close(
        result, expected.to(dtype), atol=1e-5 if dtype == torch.float32 else 2e-2, rtol=0
    )
    assert same_labels is labels and torch.equal(images, before)


@pytest.mark.parametrize(
    ("arguments", "parameter", "value"), [((0, 0), "image_size", 0), ((8, -1), "seed", -1)]
)
def test_bad_options_are_named(
    tiny_root: Path, arguments: tuple[int, int], parameter: str, value: int
) -> None:
    with refused(parameter, value):
        ImageFolder(tiny_root, "train", arguments[0], train=True, seed=arguments[1])
