"""Without simplejpeg Pillow reads and writes JPEG: the same training images, and one warning."""

from __future__ import annotations

import io
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from gallery_lib.data.images import check, decode, jpeg


@pytest.fixture
def without_simplejpeg(monkeypatch):
    monkeypatch.setattr(jpeg, "simplejpeg", None)
    jpeg.announce.cache_clear()
    yield
    jpeg.announce.cache_clear()


@pytest.fixture
def photo(tmp_path):
    drawn = np.random.default_rng(1).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    path = tmp_path / "photo.jpg"
    Image.fromarray(drawn).resize((160, 120)).save(path, quality=90)
    return path


def crop(height: int, width: int) -> tuple[int, int, int, int]:
    return 10, 20, height // 2, width // 2


def test_images_are_those_that_simplejpeg_gives(photo, without_simplejpeg, monkeypatch):
    with pytest.warns(jpeg.SlowDecoding, match="Pillow reads the images"):
        pillow = decode.load(photo, crop, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        decode.load(photo, crop, 64)
    monkeypatch.undo()
    assert jpeg.simplejpeg is not None
    assert torch.equal(decode.load(photo, crop, 64), pillow)


@pytest.mark.filterwarnings("ignore::gallery_lib.data.images.jpeg.SlowDecoding")
def test_what_is_written_is_read_again(without_simplejpeg):
    image = np.full((24, 32, 3), (200, 30, 90), np.uint8)
    read = np.asarray(Image.open(io.BytesIO(jpeg.encode(image, 96, "444"))))
    assert read.shape == image.shape and np.abs(read.astype(int) - image).max() <= 2


def test_the_check_of_a_file_says_that_warnings_stay_unknown(photo, without_simplejpeg):
    with pytest.warns(jpeg.SlowDecoding, match="stay unknown"):
        assert check.examine(photo) is None
