"""Statistics of `gallery::batch_norm_relu`: kernels on the CPU against float64."""

from __future__ import annotations

import torch
from cuda_on_host import draw
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernels.batch_norm_memory import (
    CHANNELS,
    DTYPES,
    EPS,
    OFFSETS,
    ROWS,
    SEEDS,
    Memory,
    U,
    as_batch,
    terms_of,
)

from gallery_lib.kernels import batch_norm_launch as plan
from gallery_lib.kernels import batch_norm_reference as rules
from gallery_lib.kernels.batch_norm_reference import Running


@settings(max_examples=30, deadline=None)
@given(
    rows=ROWS,
    channels=CHANNELS,
    dtype=DTYPES,
    centre=st.sampled_from([0.0, 1.0, 50.0]),
    exponent=st.sampled_from([-70.0, 0.0, 6.0]),
    momentum=st.sampled_from([None, 0.1, 1.0]),
    offset=OFFSETS,
    seed=SEEDS,
    schedule=draw.SCHEDULES,
)
@example(
    rows=300,
    channels=72,
    dtype=torch.float16,
    centre=1.0,
    exponent=0.0,
    momentum=None,
    offset=0,
    seed=1,
    schedule=3,
)
@example(
    rows=5000,
    channels=4,
    dtype=torch.float32,
    centre=1.0,
    exponent=0.0,
    momentum=0.1,
    offset=0,
    seed=2,
    schedule=1,
)
@example(
    rows=300,
    channels=72,
    dtype=torch.float32,
    centre=50.0,
    exponent=0.0,
    momentum=0.1,
    offset=0,
    seed=2,
    schedule=5,
)
def test_statistics_are_those_of_float64(
    rows, channels, dtype, centre, exponent, momentum, offset, seed, schedule
):
    memory = Memory()
    values = (
        draw.values(rows * channels, dtype, seed, exponent).double() + centre * 2**exponent
    ).view(rows, channels)
    x = as_batch(memory.take(values.to(dtype), offset))
    slabs = plan.slabs_of(x)
    parts = memory.new(slabs.count, channels), memory.new(slabs.count, channels)
    mean, squares, inverse_deviation = (memory.new(channels) for _ in range(3))
    old = (
        draw.values(channels, torch.float32, seed + 1),
        draw.values(channels, torch.float32, seed + 2).abs(),
    )
    running = Running(
        memory.take(old[0]), memory.take(old[1]), memory.take(torch.tensor([3])), momentum
    )
    memory.run(
        plan.moments(x, slabs, *parts, running.batches),
        plan.combine(
            *parts,
            slabs,
            running,
            EPS,
            mean,
            squares_of_all=squares,
            inverse_deviation=inverse_deviation,
        ),
        schedule=schedule,
    )
    exact = x.double()[0, :, :, 0]  # [C, rows]
    exact_mean = exact.mean(1)
    exact_squares = (exact - exact_mean[:, None]).square().sum(1)
    terms, largest = terms_of(rows, slabs), exact.abs().amax(1)
    mean_bound = 3 * terms * U * largest + draw.SMALLEST[torch.float32]
    squares_bound = (
        3 * terms * U * exact_squares
        + 4 * mean_bound * (rows * exact_squares).sqrt()
        + rows * mean_bound**2
    )
    squares_bound = squares_bound + rows * draw.SMALLEST[torch.float32]
    assert ((mean - exact_mean).abs() <= mean_bound).all()
    assert ((squares - exact_squares).abs() <= squares_bound).all()
    variance, variance_bound = exact_squares / rows, squares_bound / rows
    exact_inverse = (variance + EPS).rsqrt()
    assert (
        (inverse_deviation - exact_inverse).abs()
        <= exact_inverse * (variance_bound / (variance + EPS) + 2 * U)
    ).all()
    assert running.batches.item() == 4
    share, unbiased = 1 / 4 if momentum is None else momentum, rows / max(rows - 1, 1)
    expected = (
        (1 - share) * old[0].double() + share * exact_mean,
        (1 - share) * old[1].double() + share * variance * unbiased,
    )
    assert (
        (running.mean - expected[0]).abs() <= share * mean_bound + U * expected[0].abs() + 2.0**-140
    ).all()
    assert (
        (running.variance - expected[1]).abs()
        <= share * variance_bound * unbiased + U * expected[1].abs() + 2.0**-140
    ).all()


@settings(max_examples=20, deadline=None)
@given(
    counts=st.lists(st.integers(0, 50), min_size=1, max_size=40),
    channels=st.integers(1, 20),
    seed=SEEDS,
    schedule=draw.SCHEDULES,
)
@example(counts=[0, 0], channels=9, seed=0, schedule=0)
@example(counts=[5] * 40, channels=9, seed=0, schedule=1)
def test_parts_of_several_processes_make_the_whole(counts, channels, seed, schedule):
    rows, memory = sum(counts), Memory()
    values = (
        draw.values(rows * channels, torch.float64, seed)
        .view(1, rows, channels, 1)
        .permute(0, 2, 1, 3)
    )
    parts = [rules.partial(part) for part in values.split(counts, dim=2)]
    means, squares = (
        memory.take(torch.stack(column).float()) for column in zip(*parts, strict=True)
    )
    mean, inverse_deviation, old = memory.new(channels), memory.new(channels), torch.rand(channels)
    running = Running(memory.take(old), memory.take(old), None, 0.3)
    each = plan.combine(
        means,
        squares,
        memory.take(torch.tensor(counts)),
        running,
        EPS,
        mean,
        inverse_deviation=inverse_deviation,
    )
    memory.run(each, schedule=schedule)
    expected_mean, expected_squares = rules.partial(values)
    # Values are below 4.
    torch.testing.assert_close(mean.double(), expected_mean, rtol=0, atol=16 * U)
    torch.testing.assert_close(
        inverse_deviation.double(),
        (expected_squares / max(rows, 1) + EPS).rsqrt(),
        rtol=2e-5,
        atol=0,
    )
    if rows == 0:
        assert torch.equal(running.mean, old) and torch.equal(running.variance, old)
    else:
        torch.testing.assert_close(
            running.mean.double(), 0.7 * old.double() + 0.3 * expected_mean, rtol=0, atol=16 * U
        )
