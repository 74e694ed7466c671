"""`gallery::prepare_images`: kernel and reference against float64, and the loader's own result."""

from __future__ import annotations

import torch
from cuda_on_host import draw
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.ways import KERNELS
from own_operators import on_cpu_too

from gallery_lib.config.switches import COMPILER_VARIABLE
from gallery_lib.data.images.image_folder import MEAN, STANDARD_DEVIATION, finish_batch
from gallery_lib.kernels.image_batch import scale_and_shift
from gallery_lib.kernels.runtime.launch import ELEMENTS

U = 2.0**-24
SCALE, SHIFT = scale_and_shift(MEAN, STANDARD_DEVIATION)


def assert_within_the_bound(batch: torch.Tensor, images: torch.Tensor) -> None:
    """Assert that the error is within the bound of rounding.

    Scale and shift are rounded to fp32, and so are product and sum: 2 U of each. Then the result is
    rounded to its dtype.
    """
    scale, shift = (torch.tensor(values, dtype=torch.float64) for values in (SCALE, SHIFT))
    expected = (images.double() * scale + shift).permute(0, 3, 1, 2)
    bound = 4 * U * (expected.abs() + 2 * max(map(abs, SHIFT)))
    bound = bound + draw.UNIT_ROUNDOFF[batch.dtype] * (expected.abs() + bound)
    assert ((batch.double() - expected).abs() <= bound).all()


@KERNELS
@settings(max_examples=80, deadline=None)
@given(
    count=st.integers(0, 4),
    size=st.tuples(st.integers(1, 12), st.integers(1, 40)),
    dtype=st.sampled_from(list(ELEMENTS)),
    offset=draw.OFFSETS,
    seed=st.integers(0, 2**16),
    schedule=draw.SCHEDULES,
)
def test_every_value_is_within_the_bound_of_float64(
    way, count, size, dtype, offset, seed, schedule
):
    generator, device = torch.Generator().manual_seed(seed), way(schedule, 0)
    drawn = torch.randint(0, 256, (count, *size, 3), generator=generator, dtype=torch.uint8)
    images, rest = device.take(drawn, offset), (SCALE, SHIFT, dtype)
    for batch in (
        device.call("prepare_images", images, *rest),
        torch.ops.gallery.prepare_images(images, *rest),
    ):
        assert_within_the_bound(batch, drawn)
        assert batch.is_contiguous(memory_format=torch.channels_last)


@KERNELS
def test_it_is_bit_by_bit_what_the_loader_makes(way, monkeypatch):
    images = torch.randint(0, 256, (33, 60, 71, 3), dtype=torch.uint8)
    expected = finish_batch((images, torch.zeros(33)), torch.channels_last)[0]
    monkeypatch.setenv(COMPILER_VARIABLE, "1")
    with on_cpu_too():
        ours = finish_batch((images, torch.zeros(33)), torch.channels_last)[0]
    by_kernel = way(offset=0).call("prepare_images", images, SCALE, SHIFT, torch.float32)
    assert torch.equal(ours, expected) and torch.equal(by_kernel, expected)
