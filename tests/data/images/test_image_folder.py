"""Items and batches of images and masks: the same for any worker, in memory that is used again."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from data_command import run_data_command
from PIL import Image
from refusal import check_refused_command, refused
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from gallery_lib.data.images import image_folder
from gallery_lib.data.images.decode import centre_crop, decode, load, random_resized_crop
from gallery_lib.data.images.image_folder import MEAN, STANDARD_DEVIATION, ImageFolder, finish_batch
from gallery_lib.data.images.listing import check_segmentation_folder
from gallery_lib.data.images.mock_segmentation import SegmentationSpec, generate, render
from gallery_lib.data.images.segmentation_folder import SegmentationFolder


def test_items_and_batches_have_the_promised_shapes_and_labels(tiny_root: Path) -> None:
    dataset = ImageFolder(tiny_root, "train", 64, train=True, seed=0)
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


SHAPE = (4, 3, 32, 32)


def test_memory_of_a_batch_that_has_ended_is_used_again() -> None:
    first = image_folder.empty(SHAPE)
    assert first.dtype == torch.float32 and first.shape == SHAPE and first.is_contiguous()
    address = first.data_ptr()
    del first
    assert image_folder.empty(SHAPE).data_ptr() == address and address % 64 == 0


def test_memory_with_a_reference_is_left_alone() -> None:
    batch = image_folder.empty(SHAPE).fill_(1.0)
    weight = torch.ones(32, requires_grad=True)
    held = [batch[1:], batch.detach()]
    product = (batch * weight).sum()  # saves the batch
    del batch
    others = [image_folder.empty(SHAPE).fill_(2.0)]
    assert all(tensor.eq(1.0).all() for tensor in held)
    del held
    others.append(image_folder.empty(SHAPE).fill_(2.0))
    product.backward()
    assert weight.grad is not None and weight.grad.eq(4 * 3 * 32).all()


def test_threads_never_share_memory() -> None:
    def stays(value: float) -> bool:
        held = [image_folder.empty((64,)).fill_(value) for _ in range(300)]
        return all(tensor.eq(value).all() for tensor in held)

    for _ in range(3):  # in memory that is used again from the second time on
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(stays, (0.0, 1.0, 2.0, 3.0)))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small mock set, which must not be changed."""
    folder = tmp_path_factory.mktemp("segmentation") / "small"
    generate(folder, SPEC)
    return folder


SPEC = SegmentationSpec(train=5, val=2, seed=3)
SIZE = (32, 47)


def training(root: Path, seed: int = 0) -> SegmentationFolder:
    return SegmentationFolder(root, "train", SIZE, train=True, seed=seed)


def save_mask(path: Path, mode: str, values: np.ndarray) -> None:
    Image.fromarray(values).convert(mode).save(path)


def half(value: int, other: int = 0) -> np.ndarray:
    values = np.full((640, 959), other, np.uint8)
    values[:, :400] = value
    return values


@pytest.mark.slow
def test_every_mask_holds_both_classes() -> None:
    shares = [float((render(0, "train", index)[1] == 255).mean()) for index in range(24)]
    assert min(shares) > 0.005 and max(shares) < 0.75
    assert 0.1 < np.mean(shares) < 0.3


def test_items_and_batches_have_the_promised_shapes_and_values(root: Path) -> None:
    data = training(root)
    image, mask = data[4]
    assert (image.shape, image.dtype) == ((32, 47, 3), torch.uint8)
    assert (mask.shape, mask.dtype, mask.unique().tolist()) == ((32, 47), torch.uint8, [0, 1])
    images, masks = data.finish_batch(next(iter(DataLoader(data, 5))), torch.channels_last)
    assert images.shape == (5, 3, 32, 47)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert masks.dtype == torch.int64 and torch.equal(masks[4], mask.long())


def test_held_out_images_are_whole_at_any_size_and_stay_as_they_are(root: Path) -> None:
    image, mask = SegmentationFolder(root, "val", (640, 959), train=False)[1]
    drawn, drawn_mask = render(SPEC.seed, "val", 1)
    assert np.abs(image.numpy().astype(int) - drawn).mean() < 3  # what JPEG costs
    assert 150_000 < (root / "val/images/000001.jpg").stat().st_size < 500_000  # as a photograph
    assert np.array_equal(mask.numpy(), drawn_mask // 255)


@pytest.mark.slow
def test_flips_turn_image_and_mask_together(root: Path) -> None:
    plain, data = SegmentationFolder(root, "train", SIZE, train=False), training(root)
    seen = set()
    for epoch in range(8):
        data.set_epoch(epoch)
        for index in range(5):
            image, mask = data[index]
            flips = ((), (0,), (1,), (0, 1))
            (axes,) = [f for f in flips if torch.equal(mask, plain[index][1].flip(f))]
            difference = (image.float() - plain[index][0].flip(axes).float()).abs().mean()
            assert difference < 3  # the fast DCT's rounding
            seen.add(axes)
    assert seen == {(), (0,), (1,), (0, 1)}


@pytest.mark.parametrize("values", [half(255), half(1), np.zeros((640, 959), np.uint8)])
def test_zero_is_background_and_any_one_other_value_the_object(
    copy: Path, values: np.ndarray
) -> None:
    Image.fromarray(values).save(copy / "train" / "masks" / "000000.png")
    mask = SegmentationFolder(copy, "train", (640, 959), train=False)[0][1]
    assert np.array_equal(mask.numpy(), values != 0)
    assert "7 read" in str(check_segmentation_folder(copy, full=True))


def third_mask(mode: str, values: np.ndarray) -> Callable[[Path], object]:
    return lambda folder: save_mask(folder / "train/masks/000003.png", mode, values)


DEFECTS: list[tuple[Callable[[Path], object], list[str]]] = [
    (lambda folder: shutil.rmtree(folder), ["does not exist"]),
    (lambda folder: shutil.rmtree(folder / "val"), ["no val/images/"]),
    (lambda folder: shutil.rmtree(folder / "train" / "masks"), ["no train/masks/"]),
    (
        lambda folder: [path.unlink() for path in (folder / "val" / "images").iterdir()],
        ["val/images holds no images", "data_prep/mock_segmentation.py"],
    ),
    (third_mask("L", half(255)[:, :958]), ["000003.png: 640×958 pixels", "000003.jpg has 640×959"]),
    (third_mask("RGB", half(255)), ["000003.png: 3 channels"]),
    (
        lambda folder: shutil.copy(
            folder / "train/images/000001.jpg", folder / "train/images/000001.jpeg"
        ),
        ["000001.jpeg", "000001.jpg"],
    ),
    (third_mask("L", half(2, 1)), ["000003.png: the values 1, 2"]),
    (third_mask("L", half(255) // 2 + half(1)[:, ::-1]), ["000003.png: the values 0, 1, 127"]),
    (
        lambda folder: (folder / "train/masks/000003.png").write_bytes(b"x"),
        ["train/masks/000003.png: no mask"],
    ),
    (
        lambda folder: (folder / "train/images/000003.jpg").write_bytes(b"x"),
        ["train/images/000003.jpg: damaged", "1 bytes"],
    ),
]


def test_images_of_other_formats_are_read_and_what_is_left_out_is_named(copy: Path) -> None:
    images, masks = copy / "train" / "images", copy / "train" / "masks"
    with Image.open(images / "000001.jpg") as image:
        image.save(images / "000001.webp")
    (images / "000001.jpg").unlink()
    (masks / "000001.png").rename(masks / "000001.PNG")
    for name in ("images/.hidden.jpg", "images/note.txt", "masks/other.gif"):
        (copy / "train" / name).write_bytes(b"x")
    for folder, ending in ((images, "jpg"), (masks, "png")):
        (folder / "below").mkdir()
        (folder / f"000004.{ending}").rename(folder / "below" / f"000004.{ending}")
    shutil.copy(masks / "000002.png", masks / "alone.png")
    data = training(copy)
    assert (
        len(data) == 5 and data.pairs[1][0].name == "000001.webp" and data[1][0].shape == (*SIZE, 3)
    )
    said = (
        f"left out of {copy / 'train'}: 1 hidden (images/.hidden.jpg), "
        "2 with another ending (images/note.txt), 1 a mask without an image (masks/alone.png)"
    )
    assert data.notices == (said,) and said in str(check_segmentation_folder(copy))


def test_all_faults_are_named_in_one_run(copy: Path) -> None:
    for name in ("000001", "000002"):
        (copy / "train" / "masks" / f"{name}.png").unlink()
    save_mask(copy / "train/masks/000003.png", "RGB", half(255))
    shutil.rmtree(copy / "val" / "masks")
    words = "000001.jpg, 000002.jpg", "000003.png: 3 channels", "no val/masks/"
    for full in (False, True):
        with refused("data_dir", "3 faults were found", *words):
            check_segmentation_folder(copy, full=full)


@pytest.mark.parametrize(("damage", "values"), DEFECTS)
def test_each_defect_has_its_message(
    copy: Path, damage: Callable[[Path], object], values: list[str]
) -> None:
    damage(copy)
    with refused("data_dir", *values):
        check_segmentation_folder(copy)
    if "the values" in values[0]:  # a training reads each mask by itself
        with refused(copy / "train/masks/000003.png", "values"):
            training(copy)[3]


@pytest.mark.slow
def test_the_full_check_finds_what_libjpeg_only_warns_about_and_ends_with_0_or_2(
    root: Path, copy: Path
) -> None:
    good = run_data_command("check_segmentation", root)
    assert (good.returncode, good.stderr) == (0, "")
    assert "5 train, 2 val images with masks; 7 read, all fine" in good.stdout
    path = copy / "train/images/000003.jpg"
    data = path.read_bytes()
    path.write_bytes(data[:90_000] + bytes(400) + data[90_400:])
    training(copy)[3]
    bad = run_data_command("check_segmentation", copy, "--full")
    check_refused_command(bad.returncode, bad.stderr, path, "Corrupt JPEG")
