"""Images with masks: the mock set, the data set that reads such folders, and reports of defects."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from data.images.small_segmentation import SIZE, SPEC, half, training
from PIL import Image
from torch.utils.data import DataLoader

from gallery_lib.data.images.check import check_segmentation_folder
from gallery_lib.data.images.image_folder import MEAN, STANDARD_DEVIATION
from gallery_lib.data.images.mock_segmentation import render
from gallery_lib.data.images.segmentation_folder import SegmentationFolder


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


@pytest.mark.parametrize("values", [half(255), half(1), np.zeros((640, 959), np.uint8)])
def test_zero_is_background_and_any_one_other_value_the_object(
    copy: Path, values: np.ndarray
) -> None:
    Image.fromarray(values).save(copy / "train" / "masks" / "000000.png")
    mask = SegmentationFolder(copy, "train", (640, 959), train=False)[0][1]
    assert np.array_equal(mask.numpy(), values != 0)
    assert "7 read" in str(check_segmentation_folder(copy, full=True))
