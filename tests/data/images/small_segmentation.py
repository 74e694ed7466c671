"""Small mock set of images with masks, and the folder of the commands that make such sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from gallery_lib.data.images.mock_segmentation import SegmentationSpec
from gallery_lib.data.images.segmentation_folder import SegmentationFolder

DATA_PREP = Path(__file__).resolve().parents[3] / "data_prep"
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
