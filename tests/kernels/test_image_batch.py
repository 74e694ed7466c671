"""`gallery::prepare_images`: kernel and reference against a float64 loop over pixels.

They are also compared with the loader's own result.
"""

from __future__ import annotations

import torch
from cuda_on_host import draw
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.ways import KERNELS, OnHost

from gallery_lib.data.images.image_folder import MEAN, STANDARD_DEVIATION, finish_batch
from gallery_lib.kernels.image_batch import prepare_images, scale_and_shift
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


@KERNELS
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
    way, count, size, cropped, reach, dtype, offset, seed, schedule
):
    generator, device = torch.Generator().manual_seed(seed), way(schedule, 0)
    (height, width), (h, w) = size, cropped

    def places(most):
        highest = max(1, most + 1 + reach)
        drawn = torch.randint(-reach, highest, (count,), generator=generator, dtype=torch.int32)
        return device.take(drawn)

    shape = (count, height, width, 3)
    bytes_ = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    images, tops, lefts = device.take(bytes_, offset), places(height - h), places(width - w)
    mirrored = device.take(torch.rand(count, generator=generator) < 0.5)
    expected = exact(images, tops, lefts, mirrored, h, w)
    rest = (tops, lefts, mirrored, h, w, SCALE, SHIFT, dtype)
    for batch in (
        device.call("prepare_images", images, *rest),
        torch.ops.gallery.prepare_images(images, *rest),
    ):
        assert_within_the_bound(batch, expected)
        assert batch.is_contiguous(memory_format=torch.channels_last)


def test_without_crop_and_mirror_it_is_bit_by_bit_what_the_loader_makes():
    images = torch.randint(0, 256, (3, 9, 7, 3), dtype=torch.uint8)
    expected = finish_batch((images, torch.zeros(3)), torch.channels_last)[0]
    assert torch.equal(
        prepare_images(images, mean=MEAN, standard_deviation=STANDARD_DEVIATION), expected
    )
    rest = (None, None, None, 9, 7, SCALE, SHIFT, torch.float32)
    assert torch.equal(OnHost(offset=0).call("prepare_images", images, *rest), expected)
