"""Operators for CUDA alone: `gallery::gradient_statistics` and `gallery::prepare_images`.

Kernels and references are held against float64, and images against what the loader makes of them.
"""

from __future__ import annotations

import math

import pytest
import torch
from cuda_on_host import draw
from cuda_on_host.device import Guarded
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernels.ways import KERNELS, OnHost
from own_operators import on_cpu_too

from gallery_lib.config.switches import COMPILER_VARIABLE
from gallery_lib.data.images.image_folder import MEAN, STANDARD_DEVIATION, finish_batch
from gallery_lib.kernels.gradient_statistics import gradient_statistics
from gallery_lib.kernels.image_batch import scale_and_shift
from gallery_lib.kernels.runtime.launch import ELEMENTS

U = 2.0**-24
NORM_RELATIVE_ERROR = 20 * U
"""A thread adds at most 34 squares in fp32, all positive, each rounded twice.

The sum is off by at most 36 unit roundoffs, the root by half of that. Everything after is in fp64,
but for the last rounding.
"""


def found(gradients: list[torch.Tensor], way=OnHost, schedule: int = 0) -> tuple[float, float]:
    """Return norm and found_inf from the kernels."""
    norm, found_inf = way(schedule).call("gradient_statistics", gradients)
    return norm.item(), found_inf.item()


def in_plain_torch(gradients: list[torch.Tensor]) -> tuple[float, float]:
    norm, found_inf = gradient_statistics(gradients)
    assert all(each.dtype is torch.float32 and each.dim() == 0 for each in (norm, found_inf))
    return norm.item(), found_inf.item()


def exact_norm(gradients: list[torch.Tensor]) -> float:
    return math.sqrt(math.fsum(g.double().square().sum().item() for g in gradients))


ONE = st.tuples(
    draw.SIZES, st.sampled_from(list(ELEMENTS)), draw.OFFSETS, st.floats(-149, 127), draw.SCHEDULES
)
TENSORS = st.lists(ONE, min_size=1, max_size=5)


@KERNELS
@settings(max_examples=60, deadline=None)
@given(tensors=TENSORS, schedule=draw.SCHEDULES)
@example(tensors=[(0, torch.float32, None, 0.0, 0)], schedule=0)
@example(
    tensors=[(20000, torch.float32, 1, 126.0, 0), (20000, torch.float32, 3, -147.0, 0)], schedule=1
)
@example(tensors=[(257, torch.float32, 1, -140.0, 5)], schedule=3)
def test_the_norm_is_that_of_float64_for_any_sizes_alignment_and_magnitudes(way, tensors, schedule):
    gradients = [
        Guarded(draw.values(size, dtype, seed, exponent), offset).tensor
        for size, dtype, offset, exponent, seed in tensors
    ]
    expected, largest = exact_norm(gradients), torch.finfo(torch.float32).max
    # The kernel's root is in fp64 and rounded once.
    for (norm, found_inf), least in (
        (found(gradients, way, schedule), 2.0**-150),
        (in_plain_torch(gradients), 2.0**-149),
    ):
        assert found_inf == 0.0
        if expected <= largest * (1 - NORM_RELATIVE_ERROR):
            assert abs(norm - expected) <= NORM_RELATIVE_ERROR * expected + least
        else:
            # Not representable, so it may be infinite.
            assert norm >= largest * (1 - 2 * NORM_RELATIVE_ERROR)


@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(1, 20000),
    place=st.integers(0, 2**20),
    bad=st.sampled_from([math.inf, -math.inf, math.nan]),
    dtype=st.sampled_from(list(ELEMENTS)),
    offset=draw.OFFSETS,
    schedule=draw.SCHEDULES,
)
def test_one_infinity_or_nan_anywhere_is_found(size, place, bad, dtype, offset, schedule):
    gradient = draw.values(size, dtype, place)
    gradient[place % size] = bad
    gradients = [torch.ones(3), Guarded(gradient, offset).tensor, torch.ones(5).half()]
    for norm, found_inf in (found(gradients, schedule=schedule), in_plain_torch(gradients)):
        assert found_inf == 1.0
        assert math.isnan(norm) if math.isnan(bad) else norm == math.inf


def test_the_largest_finite_values_are_not_taken_for_infinite():
    for dtype in ELEMENTS:
        assert found([torch.full((1000,), torch.finfo(dtype).max, dtype=dtype)])[1] == 0.0


def test_every_element_counts_once():
    size = 2 * 8192 + 5
    for dtype in ELEMENTS:
        for offset in (0, 1, 7):
            assert found([Guarded(torch.ones(size, dtype=dtype), offset).tensor])[
                0
            ] == pytest.approx(math.sqrt(size), rel=1e-7)
    gradient = Guarded(torch.zeros(size), 1).tensor
    for place in (0, 1, 2, 3, 4, 8190, 8191, 8192, 8195, size - 5, size - 2, size - 1):
        gradient.zero_()[place] = 3.0
        assert found([gradient]) == (3.0, 0.0), place


def test_more_tensors_than_fit_one_launch_and_more_blocks_than_the_last_one_has_threads():
    gradients = [torch.full((1 + i % 3,), 2.0) for i in range(600)]
    assert found(gradients)[0] == pytest.approx(exact_norm(gradients), rel=1e-6)


@KERNELS
def test_gradients_with_gaps_and_in_other_layouts(way):
    gradients = [torch.randn(3, 4).t(), torch.randn(8, 8)[:, ::2], torch.randn(5).bfloat16()]
    norm, found_inf = found(gradients, way)
    assert norm == pytest.approx(exact_norm(gradients), rel=NORM_RELATIVE_ERROR)
    assert found_inf == 0.0


# --------------------------------------------------------------------------------------------------
# Images


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
def test_every_value_of_an_image_is_within_the_bound_of_float64(
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
def test_images_are_bit_by_bit_what_the_loader_makes(way, monkeypatch):
    images = torch.randint(0, 256, (33, 60, 71, 3), dtype=torch.uint8)
    expected = finish_batch((images, torch.zeros(33)), torch.channels_last)[0]
    monkeypatch.setenv(COMPILER_VARIABLE, "1")
    with on_cpu_too():
        ours = finish_batch((images, torch.zeros(33)), torch.channels_last)[0]
    by_kernel = way(offset=0).call("prepare_images", images, SCALE, SHIFT, torch.float32)
    assert torch.equal(ours, expected) and torch.equal(by_kernel, expected)
