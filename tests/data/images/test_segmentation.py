"""Images with masks: the mock set, the data set that reads such folders, and reports of defects."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from gallery_lib.data.images.image_folder import MEAN, STANDARD_DEVIATION
from gallery_lib.data.images.mock_segmentation import SegmentationSpec, generate, render
from gallery_lib.data.images.segmentation_check import check_segmentation_folder
from gallery_lib.data.images.segmentation_folder import SegmentationFolder
from gallery_lib.errors import InputError

DATA_PREP = Path(__file__).resolve().parents[3] / "data_prep"
SPEC = SegmentationSpec(train=5, val=2, seed=3)
SIZE = (32, 47)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small mock set, which must not be changed."""
    folder = tmp_path_factory.mktemp("segmentation") / "small"
    generate(folder, SPEC)
    return folder


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """Return a copy of the mock set, to be damaged."""
    return Path(shutil.copytree(root, tmp_path / "copy"))


def training(root: Path, seed: int = 0) -> SegmentationFolder:
    return SegmentationFolder(root, "train", SIZE, train=True, seed=seed)


def test_an_image_depends_on_seed_split_and_index_alone() -> None:
    image, mask = render(0, "train", 7)
    assert (
        image.shape == (640, 959, 3)
        and mask.shape == (640, 959)
        and image.dtype == mask.dtype == np.uint8
    )
    again = render(0, "train", 7)
    assert np.array_equal(image, again[0]) and np.array_equal(mask, again[1])
    for other in ((0, "train", 8), (0, "val", 7), (1, "train", 7)):
        assert not np.array_equal(image, render(*other)[0])


@pytest.mark.slow
def test_every_mask_holds_both_classes() -> None:
    shares = [
        float((render(0, split, index)[1] == 255).mean())
        for split, count in (("train", 64), ("val", 16))
        for index in range(count)
    ]
    assert min(shares) > 0.005 and max(shares) < 0.75
    assert 0.1 < np.mean(shares) < 0.3


def test_files_are_photographs_in_size_and_masks_in_black_and_white(root: Path) -> None:
    files = sorted((root / "train" / "images").iterdir())
    assert [path.name for path in files] == [f"{i:06d}.jpg" for i in range(5)]
    assert all(150_000 < path.stat().st_size < 500_000 for path in files)
    with Image.open(root / "val" / "masks" / "000001.png") as mask:
        assert (
            mask.mode == "L"
            and mask.size == (959, 640)
            and set(np.unique(np.asarray(mask))) == {0, 255}
        )


def test_items_and_batches_have_the_promised_shapes_and_values(root: Path) -> None:
    data = training(root)
    image, mask = data[4]
    assert (image.shape, image.dtype) == ((32, 47, 3), torch.uint8)
    assert (mask.shape, mask.dtype, mask.unique().tolist()) == ((32, 47), torch.uint8, [0, 1])
    for memory_format in (torch.contiguous_format, torch.channels_last):
        batch = next(iter(DataLoader(data, 5)))
        images, masks = data.finish_batch(batch, memory_format)
        assert (
            images.shape == (5, 3, 32, 47)
            and images.dtype == torch.float32
            and images.is_contiguous(memory_format=memory_format)
        )
        assert masks.shape == (5, 32, 47) and masks.dtype == torch.int64
        expected = (image.float() / 255 - torch.tensor(MEAN)) / torch.tensor(STANDARD_DEVIATION)
        assert torch.allclose(images[4].movedim(0, -1), expected, atol=1e-5) and torch.equal(
            masks[4], mask.long()
        )


def test_held_out_images_are_whole_at_any_size_and_stay_as_they_are(root: Path) -> None:
    image, mask = SegmentationFolder(root, "val", (640, 959), train=False)[1]
    drawn, drawn_mask = render(SPEC.seed, "val", 1)
    assert np.abs(image.numpy().astype(int) - drawn).mean() < 3  # what JPEG costs
    assert np.array_equal(mask.numpy(), drawn_mask // 255)


@pytest.mark.slow
def test_flips_turn_image_and_mask_together_and_depend_on_seed_epoch_and_index(root: Path) -> None:
    plain = SegmentationFolder(root, "train", SIZE, train=False)
    data = training(root)
    seen = set()
    for epoch in range(8):
        data.set_epoch(epoch)
        for index in range(5):
            image, mask = data[index]
            matching = [
                axes
                for axes in ((), (0,), (1,), (0, 1))
                if torch.equal(mask, plain[index][1].flip(axes))
            ]
            assert len(matching) == 1
            difference = (image.float() - plain[index][0].flip(matching[0]).float()).abs().mean()
            assert difference < 3  # the fast DCT's rounding
            seen.add((epoch, index, matching[0]))
    assert {axes for _, _, axes in seen} == {(), (0,), (1,), (0, 1)}
    data.set_epoch(0)
    first = [data[i][1] for i in range(5)]
    assert all(
        torch.equal(a, b)
        for a, (_, b) in zip(first, (training(root)[i] for i in range(5)), strict=True)
    )
    assert any(not torch.equal(a, training(root, seed=1)[i][1]) for i, a in enumerate(first))


def test_set_epoch_reaches_persistent_workers(root: Path) -> None:
    data = training(root)
    loader = DataLoader(data, 5, num_workers=1, persistent_workers=True)
    seen = []
    for epoch in (0, 1, 0):
        data.set_epoch(epoch)
        seen.append(next(iter(loader))[1])
    assert torch.equal(seen[0], seen[2]) and not torch.equal(seen[0], seen[1])


def save_mask(path: Path, mode: str, values: np.ndarray) -> None:
    Image.fromarray(values).convert(mode).save(path)


def half(value: int, other: int = 0) -> np.ndarray:
    values = np.full((640, 959), other, np.uint8)
    values[:, :400] = value
    return values


@pytest.mark.parametrize("values", [half(255), half(1), np.zeros((640, 959), np.uint8)])
def test_zero_is_background_and_any_one_other_value_the_object(
    copy: Path, values: np.ndarray
) -> None:
    Image.fromarray(values).save(copy / "train" / "masks" / "000000.png")
    mask = SegmentationFolder(copy, "train", (640, 959), train=False)[0][1]
    assert np.array_equal(mask.numpy(), values != 0)
    assert check_segmentation_folder(copy, full=True).read == 7


def empty_all(folder: Path) -> None:
    for mask in (folder / "val" / "masks").iterdir():
        Image.fromarray(np.zeros((640, 959), np.uint8)).save(mask)


DEFECTS: list[tuple[Callable[[Path], object], str]] = [
    (lambda folder: shutil.rmtree(folder), "does not exist"),
    (lambda folder: shutil.rmtree(folder / "val"), "has no val/images/ in it"),
    (lambda folder: shutil.rmtree(folder / "train" / "masks"), "has no train/masks/ in it"),
    (
        lambda folder: (folder / "train" / "masks" / "000002.png").unlink(),
        "1 of 5 images in .* have no mask: 000002.jpg needs",
    ),
    (
        lambda folder: [path.unlink() for path in (folder / "val" / "images").iterdir()],
        "holds no images",
    ),
    (
        lambda folder: save_mask(folder / "train/masks/000003.png", "L", half(255)[:, :958]),
        "000003.png is 640×958 pixels, and its image",
    ),
    (
        lambda folder: save_mask(folder / "train/masks/000003.png", "RGB", half(255)),
        "000003.png has 3 channels",
    ),
    (
        lambda folder: save_mask(folder / "train/masks/000003.png", "L", half(2, 1)),
        "000003.png has the values 1, 2",
    ),
    (
        lambda folder: save_mask(
            folder / "train/masks/000003.png", "L", half(255) // 2 + half(1)[:, ::-1]
        ),
        "has the values 0, 1, 127",
    ),
    (
        lambda folder: (folder / "train/masks/000003.png").write_bytes(b"x"),
        "Cannot read the mask .*000003.png",
    ),
    (
        lambda folder: (folder / "train/images/000003.jpg").write_bytes(b"x"),
        "000003.jpg .* is damaged or not an image",
    ),
    (empty_all, "are all 0"),
]


def test_images_of_other_formats_are_read_and_what_is_left_out_is_named(copy: Path) -> None:
    images, masks = copy / "train" / "images", copy / "train" / "masks"
    with Image.open(images / "000001.jpg") as image:
        image.save(images / "000001.webp")
    (images / "000001.jpg").unlink()
    (masks / "000001.png").rename(masks / "000001.PNG")
    for name in ("images/.hidden.jpg", "images/note.txt", "masks/other.gif"):
        (copy / "train" / name).write_bytes(b"x")
    (images / "below").mkdir()
    shutil.copy(masks / "000002.png", masks / "alone.png")
    data = training(copy)
    assert (
        len(data) == 5 and data.pairs[1][0].name == "000001.webp" and data[1][0].shape == (*SIZE, 3)
    )
    said = (
        f"left out of {copy / 'train'}: 1 hidden (images/.hidden.jpg), 1 a folder (images/below), "
        "2 with another ending (images/note.txt), 1 a mask without an image (masks/alone.png)"
    )
    assert data.notices == (said,) and said in str(check_segmentation_folder(copy))


def test_two_images_of_one_mask_are_refused(copy: Path) -> None:
    shutil.copy(copy / "train/images/000001.jpg", copy / "train/images/000001.jpeg")
    with pytest.raises(
        InputError, match=r"000001\.jpeg and 000001\.jpg in .* would share one mask"
    ):
        training(copy)


@pytest.mark.parametrize("values", [half(2, 1), half(255) // 2 + half(1)[:, ::-1]])
def test_a_mask_of_more_values_than_two_is_refused_in_training(
    copy: Path, values: np.ndarray
) -> None:
    save_mask(copy / "train/masks/000003.png", "L", values)
    with pytest.raises(InputError, match=r"000003\.png has the values"):
        training(copy)[3]


def test_the_full_check_finds_an_image_that_libjpeg_only_warns_about(copy: Path) -> None:
    path = copy / "train/images/000003.jpg"
    data = path.read_bytes()
    path.write_bytes(data[:90_000] + bytes(400) + data[90_400:])
    training(copy)[3]
    with pytest.raises(InputError, match=r"000003\.jpg: decodes with a warning: Corrupt JPEG"):
        check_segmentation_folder(copy, full=True)


@pytest.mark.parametrize(("damage", "said"), DEFECTS)
def test_each_defect_has_its_message(
    copy: Path, damage: Callable[[Path], object], said: str
) -> None:
    damage(copy)
    with pytest.raises(InputError, match=said):
        check_segmentation_folder(copy)


def test_a_data_set_over_a_missing_folder_suggests_the_command_that_makes_one(
    tmp_path: Path,
) -> None:
    with pytest.raises(InputError, match=r"data_prep/mock_segmentation\.py$"):
        training(tmp_path / "none")


def run(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(DATA_PREP / command), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_command_makes_it_once_and_ends_with_0_or_2(tmp_path: Path) -> None:
    arguments = ("--train", "2", "--val", "1", "--out", str(tmp_path / "made"))
    made, again = run("mock_segmentation.py", *arguments), run("mock_segmentation.py", *arguments)
    assert (
        made.returncode == again.returncode == 0
        and "made now" in made.stdout
        and "complete already" in again.stdout
    )
    other = run("mock_segmentation.py", *arguments, "--seed", "1")
    assert (
        other.returncode == 2
        and "holds other mock data" in other.stderr
        and "Traceback" not in other.stderr
    )
    assert (
        run("mock_segmentation.py", "--train", "0", "--out", str(tmp_path / "none")).returncode == 2
    )


@pytest.mark.slow
def test_the_check_ends_with_0_or_2_and_one_message(root: Path, tmp_path: Path) -> None:
    good = run("check_segmentation.py", str(root))
    assert (good.returncode, good.stderr) == (
        0,
        "",
    ) and "5 train, 2 val images with masks; 7 read, all fine" in good.stdout
    bad = run("check_segmentation.py", str(tmp_path))
    assert (
        bad.returncode == 2
        and "has no train/images/ in it" in bad.stderr
        and "Traceback" not in bad.stderr
    )
