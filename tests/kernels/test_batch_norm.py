"""`gallery::batch_norm_relu`: results and gradients of its kernels on the CPU against float64."""

from __future__ import annotations

import math

import pytest
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
    channel_values,
    terms_of,
)

from gallery_lib.kernels import batch_norm_launch as plan
from gallery_lib.kernels import batch_norm_reference as rules
from gallery_lib.kernels.batch_norm_reference import Channels, Running
from gallery_lib.kernels.runtime.launch import ELEMENTS


def forward_on_host(memory, rows, channels, dtype, c, with_residual, offset, seed, schedule):
    """Return (x, residual, result), each [rows, C], with the result made by the kernel."""
    x = memory.take(draw.values(rows * channels, dtype, seed + 7).view(rows, channels), offset)
    residual = (
        memory.take(draw.values(rows * channels, dtype, seed + 8).view(rows, channels))
        if with_residual
        else None
    )
    result = memory.new(rows, channels, dtype=dtype)
    beside = None if residual is None else as_batch(residual)
    memory.run(plan.normalise(as_batch(x), beside, c, as_batch(result)), schedule=schedule)
    return x, residual, result


@settings(max_examples=40, deadline=None)
@given(
    rows=st.one_of(st.just(0), ROWS),
    channels=CHANNELS,
    dtype=DTYPES,
    affine=st.booleans(),
    with_residual=st.booleans(),
    offset=OFFSETS,
    seed=SEEDS,
    schedule=draw.SCHEDULES,
)
@example(
    rows=129,
    channels=72,
    dtype=torch.bfloat16,
    affine=True,
    with_residual=True,
    offset=0,
    seed=1,
    schedule=3,
)
@example(
    rows=129,
    channels=72,
    dtype=torch.float32,
    affine=True,
    with_residual=False,
    offset=0,
    seed=1,
    schedule=3,
)
@example(
    rows=5000,
    channels=4,
    dtype=torch.float32,
    affine=True,
    with_residual=False,
    offset=0,
    seed=1,
    schedule=1,
)
def test_every_result_and_gradient_is_within_the_bound_of_float64(
    rows, channels, dtype, affine, with_residual, offset, seed, schedule
):
    memory = Memory()
    c = channel_values(memory, channels, seed, affine)
    x, residual, result = forward_on_host(
        memory, rows, channels, dtype, c, with_residual, offset, seed, schedule
    )
    off = x.double() - c.mean.double()
    scale = c.inverse_deviation.double() * (c.weight.double() if affine else 1.0)
    shift = c.bias.double() if affine else torch.zeros(channels, dtype=torch.float64)
    beside = (
        residual.double() if with_residual else torch.zeros(rows, channels, dtype=torch.float64)
    )
    exact = (off * scale + shift + beside).relu()
    bound = 4 * U * ((off * scale).abs() + shift.abs() + beside.abs())
    assert (
        (result.double() - exact).abs()
        <= bound + draw.UNIT_ROUNDOFF[dtype] * (exact + bound) + draw.SMALLEST[dtype]
    ).all()

    gradient = memory.take(
        draw.values(rows * channels, dtype, seed + 9).view(rows, channels), offset
    )
    batches = [as_batch(each) for each in (gradient, x)]
    given_result = as_batch(result) if with_residual else None
    masked = (
        memory.new(rows, channels, dtype=dtype) if with_residual else torch.empty(0, dtype=dtype)
    )
    slabs = plan.slabs_of(*batches, given_result, masked if with_residual else None)
    parts = memory.new(slabs.count, channels), memory.new(slabs.count, channels)
    of_weight, of_bias, of_x = (
        memory.new(channels),
        memory.new(channels),
        memory.new(rows, channels, dtype=dtype, offset=offset),
    )
    memory.run(
        plan.sums(*batches, given_result, c, masked, slabs, parts),
        plan.totals(*parts, c.inverse_deviation, of_weight, of_bias),
        plan.of_input(batches[0], False, batches[1], c, of_weight, of_bias, None, as_batch(of_x))
        if not with_residual
        else plan.of_input(
            as_batch(masked), True, batches[1], c, of_weight, of_bias, None, as_batch(of_x)
        ),
        schedule=schedule,
    )
    passed = gradient.masked_fill(result <= 0, 0)
    assert not with_residual or torch.equal(masked, passed)
    g, terms = passed.double(), terms_of(rows, slabs)
    products, deviation = g * off, c.inverse_deviation.double()
    assert ((of_bias - g.sum(0)).abs() <= 2 * terms * U * g.abs().sum(0)).all()
    assert (
        (of_weight - products.sum(0) * deviation).abs()
        <= 3 * terms * U * products.abs().sum(0) * deviation
    ).all()
    slope, average = of_weight.double() * deviation / max(rows, 1), of_bias.double() / max(rows, 1)
    exact = scale * (g - average - off * slope)
    bound = 8 * U * scale.abs() * (g.abs() + average.abs() + (off * slope).abs())
    assert (
        (of_x.double() - exact).abs()
        <= bound + draw.UNIT_ROUNDOFF[dtype] * (exact.abs() + bound) + draw.SMALLEST[dtype]
    ).all()


def test_the_count_of_several_processes_takes_the_place_of_the_rows():
    memory = Memory()
    c, x, gradient = channel_values(memory, 8, 0, True), torch.randn(40, 8), torch.randn(40, 8)
    of_weight, of_bias, of_x, count = (
        torch.randn(8),
        torch.randn(8),
        torch.empty(40, 8),
        torch.tensor([1000]),
    )
    memory.run(
        plan.of_input(
            as_batch(gradient), True, as_batch(x), c, of_weight, of_bias, count, as_batch(of_x)
        )
    )
    expected = rules.of_input(as_batch(gradient), as_batch(x), c, of_weight, of_bias, count)
    torch.testing.assert_close(as_batch(of_x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", list(ELEMENTS))
def test_what_fp16_rounds_to_zero_has_no_gradient(dtype):
    """The result decides, as torch judges it.

    An input of 2^-20 gives 2^-30 here, which is 0 in fp16 only.
    """
    memory = Memory()
    x = memory.take(torch.full((4, 8), 2.0**-20, dtype=dtype))
    c = Channels(torch.zeros(8), torch.full((8,), 2.0**-10))
    gradient, slabs = memory.take(torch.ones(4, 8, dtype=dtype)), plan.slabs_of(as_batch(x))
    parts, of_bias = (memory.new(slabs.count, 8), memory.new(slabs.count, 8)), memory.new(8)
    memory.run(
        plan.sums(as_batch(gradient), as_batch(x), None, c, torch.empty(0), slabs, parts),
        plan.totals(*parts, c.inverse_deviation, memory.new(8), of_bias),
    )
    assert torch.equal(of_bias, torch.full((8,), 0.0 if dtype is torch.float16 else 4.0))


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_infinite_and_nan_values_reach_statistics_and_results_and_no_other_channel(bad):
    memory = Memory()
    values = draw.values(200 * 20, torch.float32, 3).view(200, 20)
    values[150, 5] = bad
    x, good = as_batch(memory.take(values)), torch.arange(20) != 5
    slabs = plan.slabs_of(x)
    parts, mean, inverse_deviation = (
        (memory.new(slabs.count, 20), memory.new(slabs.count, 20)),
        memory.new(20),
        memory.new(20),
    )
    result = memory.new(200, 20)
    memory.run(
        plan.moments(x, slabs, *parts),
        plan.combine(*parts, slabs, Running(), EPS, mean, inverse_deviation=inverse_deviation),
    )
    memory.run(plan.normalise(x, None, Channels(mean, inverse_deviation), as_batch(result)))
    assert not mean[5].isfinite() and inverse_deviation[5].isnan() and result[:, 5].isnan().all()
    assert torch.equal(mean.isfinite(), good) and result[:, good].isfinite().all()


def test_the_same_batch_gives_the_same_bits_in_any_order_of_threads():
    x = as_batch(draw.values(700 * 40, torch.float32, 5).view(700, 40))
    results = set()
    for schedule in range(4):
        memory, slabs = Memory(), plan.slabs_of(x)
        parts, mean, squares = (
            (memory.new(slabs.count, 40), memory.new(slabs.count, 40)),
            memory.new(40),
            memory.new(40),
        )
        memory.run(
            plan.moments(x, slabs, *parts),
            plan.combine(*parts, slabs, Running(), EPS, mean, squares_of_all=squares),
            schedule=schedule,
        )
        results.add((*mean.tolist(), *squares.tolist()))
    assert len(results) == 1
