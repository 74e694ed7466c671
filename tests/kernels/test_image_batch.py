"""`gallery::prepare_images`: kernel and reference against a float64 loop over pixels.

They are also compared with the loader's own result.
"""

from __future__ import annotations

import pytest
import torch
from cuda_on_host import draw, host
from cuda_on_host.memory import Guarded, poisoned
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.dispatch import on
from refusal import refused

from gallery_lib.data.images.image_folder import MEAN, STANDARD_DEVIATION, finish_batch
from gallery_lib.kernels.image_batch import (
    Preparation,
    images_launch,
    prepare_images,
    scale_and_shift,
)
from gallery_lib.kernels.runtime.launch import ELEMENTS

U = 2.0**-24
SCALE, SHIFT = scale_and_shift(MEAN, STANDARD_DEVIATION)


def exact(images, tops, lefts, mirrored, height, width) -> torch.Tensor:
    """Return [N, h, w, 3] in float64 by slicing, image by image, with NaN beside the image."""
    result = torch.full((len(images), height, width, 3), torch.nan, dtype=torch.float64)
    for n, image in enumerate(images):
        top, left = int(tops[n]), int(lefts[n])
        values = image.double() * torch.tensor(SCALE, dtype=torch.float64) + torch.tensor(
            SHIFT, dtype=torch.float64
        )
        first = max(0, -top), max(0, -left)
        part = values[max(0, top) : max(0, top + height), max(0, left) : max(0, left + width)]
        result[n, first[0] : first[0] + part.shape[0], first[1] : first[1] + part.shape[1]] = part
        if mirrored[n]:
            result[n] = result[n].flip(1)
    return result


def assert_within_the_bound(batch: torch.Tensor, expected: torch.Tensor) -> None:
    """Assert that the error is within the bound of rounding.

    Scale and shift are rounded to fp32, and so are product and sum: 2 U of each. Then the result is
    rounded to its dtype.
    """
    expected = expected.permute(0, 3, 1, 2)
    assert torch.equal(batch.isnan(), expected.isnan())
    bound = 4 * U * (expected.abs() + 2 * max(map(abs, SHIFT)))
    bound = bound + draw.UNIT_ROUNDOFF[batch.dtype] * (expected.abs() + bound)
    assert ((batch.double() - expected).abs() <= bound)[~expected.isnan()].all()


@settings(max_examples=80, deadline=None)
@given(
    count=st.integers(0, 4),
    size=st.tuples(st.integers(1, 12), st.integers(1, 40)),
    cropped=st.tuples(st.integers(1, 12), st.integers(1, 30)),
    reach=st.sampled_from([0, 3]),
    dtype=st.sampled_from(list(ELEMENTS)),
    offset=draw.OFFSETS,
    seed=st.integers(0, 2**16),
    schedule=draw.SCHEDULES,
)
def test_every_value_is_within_the_bound_of_float64(
    count, size, cropped, reach, dtype, offset, seed, schedule
):
    generator = torch.Generator().manual_seed(seed)
    (height, width), (h, w) = size, cropped
    images = Guarded(
        torch.randint(0, 256, (count, height, width, 3), generator=generator, dtype=torch.uint8),
        offset,
    )
    tops = Guarded(
        torch.randint(
            -reach, max(1, height - h + 1 + reach), (count,), generator=generator, dtype=torch.int32
        )
    )
    lefts = Guarded(
        torch.randint(
            -reach, max(1, width - w + 1 + reach), (count,), generator=generator, dtype=torch.int32
        )
    )
    mirrored = Guarded(torch.rand(count, generator=generator) < 0.5)
    batch = poisoned((count, h, w, 3), dtype, 0)
    per_image = [each.tensor for each in (tops, lefts, mirrored)]
    preparation = Preparation(*per_image, h, w, SCALE, SHIFT, dtype)
    host.run(images_launch(images.tensor, preparation, batch.tensor.permute(0, 3, 1, 2)), schedule)
    for each in (images, tops, lefts, mirrored, batch):
        each.check()
    expected = exact(images.tensor, *per_image, h, w)
    assert_within_the_bound(batch.tensor.permute(0, 3, 1, 2), expected)
    names = dict(zip(("tops", "lefts", "mirrored"), per_image, strict=True))
    ours = prepare_images(
        images.tensor,
        mean=MEAN,
        standard_deviation=STANDARD_DEVIATION,
        size=cropped,
        dtype=dtype,
        **names,
    )
    assert_within_the_bound(ours, expected)
    assert ours.is_contiguous(memory_format=torch.channels_last)


def test_without_crop_and_mirror_it_is_bit_by_bit_what_the_loader_makes():
    images = torch.randint(0, 256, (3, 9, 7, 3), dtype=torch.uint8)
    expected = finish_batch((images, torch.zeros(3)), torch.channels_last)[0]
    assert torch.equal(
        prepare_images(images, mean=MEAN, standard_deviation=STANDARD_DEVIATION), expected
    )
    batch = torch.empty(3, 3, 9, 7).to(memory_format=torch.channels_last)
    host.run(
        images_launch(
            images, Preparation(None, None, None, 9, 7, SCALE, SHIFT, torch.float32), batch
        )
    )
    assert torch.equal(batch, expected)


def test_the_cuda_path_without_a_device_takes_the_reference():
    images = torch.randint(0, 256, (2, 5, 6, 3), dtype=torch.uint8)
    batch = on(
        "CUDA", "prepare_images", images, None, None, None, 5, 6, SCALE, SHIFT, torch.float32
    )
    torch.testing.assert_close(
        batch, prepare_images(images, mean=MEAN, standard_deviation=STANDARD_DEVIATION)
    )


@pytest.mark.slow
def test_opcheck():
    images, ints = (
        torch.randint(0, 256, (2, 5, 6, 3), dtype=torch.uint8),
        torch.tensor([0, 1], dtype=torch.int32),
    )
    arguments = (
        images,
        ints,
        ints,
        torch.tensor([True, False]),
        4,
        3,
        SCALE,
        SHIFT,
        torch.bfloat16,
    )
    torch.library.opcheck(torch.ops.gallery.prepare_images, arguments)


def test_wrong_input_is_refused():
    images, statistics = (
        torch.zeros(2, 5, 6, 3, dtype=torch.uint8),
        {"mean": MEAN, "standard_deviation": STANDARD_DEVIATION},
    )
    with refused("images", "uint8", "torch.float32"):
        prepare_images(images.float(), **statistics)
    with refused("tops", "torch.int32"):
        prepare_images(images, **statistics, tops=torch.zeros(2))
    with refused("standard_deviation", "(0.0, 1.0, 1.0)"):
        prepare_images(images, mean=MEAN, standard_deviation=(0.0, 1.0, 1.0))
    with refused("dtype", "torch.int64"):
        prepare_images(images, **statistics, dtype=torch.int64)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(ELEMENTS))
def test_the_kernel_on_the_device(dtype, cuda_kernels):
    images = torch.randint(0, 256, (33, 60, 71, 3), dtype=torch.uint8)
    tops, lefts = (
        torch.randint(0, 7, (33,), dtype=torch.int32),
        torch.randint(0, 16, (33,), dtype=torch.int32),
    )
    mirrored = torch.rand(33) < 0.5
    names = {
        "tops": tops.to(cuda_kernels),
        "lefts": lefts.to(cuda_kernels),
        "mirrored": mirrored.to(cuda_kernels),
    }
    batch = prepare_images(
        images.to(cuda_kernels),
        mean=MEAN,
        standard_deviation=STANDARD_DEVIATION,
        size=(53, 55),
        dtype=dtype,
        **names,
    )
    assert_within_the_bound(batch.cpu(), exact(images, tops, lefts, mirrored, 53, 55))
