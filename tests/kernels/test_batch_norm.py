"""`gallery::batch_norm_relu` and its parts, each way: against float64 and torch.

U is the unit roundoff of fp32. A thread of a kernel takes in a 32nd of its slab's rows, then the
parts of 2 other threads and of 8 warps: `terms` steps, each of which adds a few U of what has been
added so far. C++ adds up in fp64.
"""

from __future__ import annotations

import math

import pytest
import torch
from cuda_on_host import draw
from cuda_on_host.device import on
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernels.ways import EVERY_WAY, ON_THE_CPU, InCpp, OnHost, in_plain_form
from torch import nn
from torch.nn import functional

from gallery_lib.kernels import batch_norm
from gallery_lib.kernels.batch_norm import batch_norm_relu
from gallery_lib.kernels.runtime import operators

OPERATORS = torch.ops.gallery
U, EPS = 2.0**-24, 1e-5
ROWS = st.one_of(st.integers(1, 40), st.sampled_from([63, 64, 65, 127, 128, 129, 300]))
CHANNELS = st.sampled_from([1, 3, 4, 8, 17, 20, 31, 64, 72, 100, 2051])
OFFSETS = st.sampled_from([0, None, 1])
SEEDS = st.integers(0, 2**16)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])


def as_batch(matrix):
    """Return [rows, C] as a view [1, C, rows, 1] in channels_last."""
    return matrix[None, :, None].permute(0, 3, 1, 2)


def matrix(batch):
    """Return a batch as [rows, C] in fp64."""
    return batch[0, :, :, 0].t().double()


def terms_of(way, x) -> int:
    shape, *_ = batch_norm.slabs_of(x)
    each = min(shape.rows, shape.rows_per_slab) // batch_norm.LANES + 12
    return 8 if way is InCpp else each


def taken(way, dtype):
    return dtype if dtype in way.dtypes else torch.bfloat16


@EVERY_WAY
@settings(max_examples=30, deadline=None)
@given(
    rows=ROWS,
    channels=CHANNELS,
    dtype=DTYPES,
    centre=st.sampled_from([0.0, 1.0, 50.0, 200.0]),
    exponent=st.sampled_from([-70.0, 0.0, 6.0]),
    momentum=st.sampled_from([0.1, 0.25, 1.0]),
    offset=OFFSETS,
    seed=SEEDS,
    schedule=draw.SCHEDULES,
)
@example(300, 72, torch.float16, 1.0, 0.0, 0.25, 0, 1, 3)
@example(5000, 4, torch.float32, 1.0, 0.0, 0.1, 0, 2, 1)
@example(300, 72, torch.float32, 50.0, 0.0, 0.1, 0, 2, 5)
@example(9000, 64, torch.bfloat16, 0.0, 0.0, 0.1, 0, 1, 1)
def test_statistics_are_those_of_float64(
    way, rows, channels, dtype, centre, exponent, momentum, offset, seed, schedule
):
    device, dtype = way(schedule, offset), taken(way, dtype)
    values = draw.values(rows * channels, dtype, seed, exponent).double() + centre * 2**exponent
    x = as_batch(device.take(values.view(rows, channels).to(dtype), offset))
    old = [draw.values(channels, torch.float32, seed + k).abs() for k in (1, 2)]
    running = [*map(device.take, old)]
    mean, inverse = device.call("batch_norm_statistics_", x, *running, momentum, EPS)
    exact = matrix(x)
    exact_mean, spread = exact.mean(0), exact.amax(0) - exact.amin(0) + 2.0**-100
    exact_squares = (exact - exact_mean).square().sum(0)
    terms, largest = terms_of(way, x), exact.abs().amax(0)
    if way is InCpp:
        mean_bound = 12 * U * spread + 2 * U * exact_mean.abs()
        squares_bound = 24 * U * (exact_squares + rows * spread.square())
    else:
        mean_bound = 3 * terms * U * largest + draw.SMALLEST[torch.float32]
        squares_bound = 3 * terms * U * exact_squares + rows * mean_bound**2
        squares_bound = squares_bound + 4 * mean_bound * (rows * exact_squares).sqrt()
    squares_bound = squares_bound + rows * draw.SMALLEST[torch.float32]
    assert ((mean - exact_mean).abs() <= mean_bound).all()
    variance, variance_bound = exact_squares / rows, squares_bound / rows
    expected = (variance + EPS).rsqrt()
    bound = expected * (variance_bound / (variance + EPS) + 2 * U)
    assert ((inverse - expected).abs() <= bound).all()
    unbiased = rows / max(rows - 1, 1)
    for got, first, second, bound in (
        (running[0], old[0], exact_mean, mean_bound),
        (running[1], old[1], variance * unbiased, variance_bound * unbiased),
    ):
        wanted = (1 - momentum) * first.double() + momentum * second
        assert ((got - wanted).abs() <= momentum * bound + 2 * U * wanted.abs() + 2.0**-140).all()


@EVERY_WAY
@settings(max_examples=40, deadline=None)
@given(
    rows=st.one_of(st.just(0), ROWS),
    channels=CHANNELS,
    dtype=DTYPES,
    affine=st.booleans(),
    offset=OFFSETS,
    seed=SEEDS,
    schedule=draw.SCHEDULES,
)
@example(129, 72, torch.bfloat16, True, 0, 1, 3)
@example(129, 72, torch.float32, True, 0, 1, 3)
@example(5000, 4, torch.float32, True, 0, 1, 1)
@example(9000, 64, torch.bfloat16, True, 0, 1, 1)
def test_every_result_and_gradient_is_within_the_bound_of_float64(
    way, rows, channels, dtype, affine, offset, seed, schedule
):
    device, dtype = way(schedule, offset), taken(way, dtype)
    x, gradient = (
        as_batch(
            device.take(draw.values(rows * channels, dtype, seed + k).view(rows, channels), offset)
        )
        for k in range(2)
    )
    values = [draw.values(channels, torch.float32, seed + k) for k in range(4, 8)]
    mean, inverse, weight, bias = map(device.take, (values[0], values[1].abs(), *values[2:]))
    c = (mean, inverse, weight, bias) if affine else (mean, inverse, None, None)
    result = device.call("batch_norm_relu", x, *c)
    assert result.is_contiguous(memory_format=torch.channels_last)
    off = matrix(x) - mean.double()
    scale = inverse.double() * (weight.double() if affine else 1.0)
    shift = bias.double() if affine else torch.zeros(channels).double()
    exact = (off * scale + shift).relu()
    bound = 4 * U * ((off * scale).abs() + shift.abs())
    unit, least = draw.UNIT_ROUNDOFF[dtype], draw.SMALLEST[dtype]
    assert ((matrix(result) - exact).abs() <= bound + unit * (exact + bound) + least).all()

    of_x, of_weight, of_bias = device.call("batch_norm_relu_gradient", gradient, x, *c)
    g, terms = matrix(gradient.masked_fill(result <= 0, 0)), terms_of(way, x)
    products, deviation = g * off, inverse.double()
    assert ((of_bias - g.sum(0)).abs() <= 2 * terms * U * g.abs().sum(0)).all()
    of_products = 3 * terms * U * products.abs().sum(0) * deviation
    assert ((of_weight - products.sum(0) * deviation).abs() <= of_products).all()
    slope, average = of_weight.double() * deviation / max(rows, 1), of_bias.double() / max(rows, 1)
    exact = scale * (g - average - off * slope)
    bound = 8 * U * scale.abs() * (g.abs() + average.abs() + (off * slope).abs())
    assert ((matrix(of_x) - exact).abs() <= bound + unit * (exact.abs() + bound) + least).all()


@pytest.mark.parametrize(
    ("way", "dtype", "power", "factor", "kept"),
    [
        (OnHost, torch.float32, -20, -10, True),
        (OnHost, torch.bfloat16, -20, -10, True),
        (OnHost, torch.float16, -20, -10, False),  # 2^-30 is 0 in fp16 only
        (OnHost, torch.float16, -15, -10, False),  # half of the smallest number
        (OnHost, torch.float16, -14, -10, True),
        (OnHost, torch.bfloat16, -67, -67, False),
        (OnHost, torch.bfloat16, -67, -66, True),
        (InCpp, torch.bfloat16, -67, -67, False),  # 2^-134 rounds to 0
    ],
)
def test_what_rounds_to_zero_has_no_gradient(way, dtype, power, factor, kept):
    """The result decides, as torch judges it."""
    x = as_batch(torch.full((4, 8), 2.0**power, dtype=dtype))
    c = torch.zeros(8), torch.full((8,), 2.0**factor), None, None
    assert bool(way().call("batch_norm_relu", x, *c).any()) == kept
    of_bias = way().call("batch_norm_relu_gradient", torch.ones_like(x), x, *c)[2]
    assert torch.equal(of_bias, torch.full((8,), 4.0 if kept else 0.0))


@ON_THE_CPU
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_infinite_and_nan_values_reach_statistics_and_results_and_no_other_channel(way, bad, dtype):
    device, values = way(), draw.values(200 * 20, dtype, 3).view(200, 20)
    values[150, 5] = bad
    x, good = as_batch(device.take(values)), torch.arange(20) != 5
    mean, inverse = device.call("batch_norm_statistics_", x, None, None, 0.1, EPS)
    result = matrix(device.call("batch_norm_relu", x, mean, inverse, None, None))
    assert torch.equal(mean.isfinite(), good)
    assert inverse[5].isnan() and inverse[good].isfinite().all()
    assert result[:, 5].isnan().all() and result[:, good].isfinite().all()


@EVERY_WAY
@pytest.mark.parametrize("shape", [(2, 8, 3, 5), (2, 5, 1, 1)])
def test_batches_and_channels_in_other_layouts_are_copied(way, shape):
    torch.manual_seed(0)
    x, gradient = torch.randn(shape), torch.randn(shape)
    channels = torch.rand(shape[1], 4).unbind(1)  # [C], with gaps
    channels = [each.contiguous() for each in channels] if way is InCpp else channels
    outcomes = []
    for call in (way().call, lambda name, *rest: in_plain_form(name, *wide(rest))):
        running = torch.zeros(shape[1]), torch.ones(shape[1])
        statistics = call("batch_norm_statistics_", x, *running, 0.1, EPS)
        result = call("batch_norm_relu", x, *channels)
        of_x, *sums = call("batch_norm_relu_gradient", gradient, x, *channels)
        outcomes.append([each.float() for each in (*statistics, result, *sums, of_x)])
    torch.testing.assert_close(*outcomes, rtol=1e-5, atol=1e-5)
    assert result.is_contiguous(memory_format=torch.channels_last)
    assert of_x.stride() == result.stride()


def wide(values):
    floating = (torch.float32, torch.bfloat16, torch.float16)
    return [v.double() if getattr(v, "dtype", None) in floating else v for v in values]


def test_other_dtypes_and_empty_batches_are_left_to_plain_torch():
    x, c = torch.randn(2, 4, 5, 6), (torch.zeros(4), torch.ones(4), None, None)
    before = operators.counts()
    OPERATORS.batch_norm_relu(x.half(), *c)
    OPERATORS.batch_norm_relu(x[:0], *c)
    on("CUDA", "batch_norm_relu", x, *c)  # no device is there
    assert {how for _, how in operators.counts() - before} == {operators.PLAIN_TORCH}


@pytest.mark.parametrize(
    "arguments",
    [{}, {"momentum": 0.7, "eps": 0.1}, {"affine": False}, {"track_running_stats": False}],
    ids=["plain", "eps", "without weights", "without running statistics"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["cpp", "reference"])
def test_every_kind_of_layer_trains_as_torchs_in_float64(arguments, dtype):
    torch.manual_seed(0)
    theirs = nn.BatchNorm2d(20, **arguments).double()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter)
    names = ("running_mean", "running_var", "weight", "bias")
    ours = [getattr(theirs, name) for name in names]
    ours = [each if each is None else each.detach().to(dtype, copy=True) for each in ours]
    leaves = [each.requires_grad_() for each in ours[2:] if each is not None]
    before, off = operators.counts(), 1e-5 if dtype is torch.float32 else 1e-10
    for step in range(3):
        drawn = torch.randn(3, 20, 9, 7).to(memory_format=torch.channels_last) + step
        seed = torch.randn(3, 20, 9, 7)
        inputs = [drawn.to(kind, copy=True).requires_grad_() for kind in (dtype, torch.float64)]
        result = batch_norm_relu(inputs[0], *ours, momentum=theirs.momentum, eps=theirs.eps)
        expected = functional.relu(theirs(inputs[1]))
        for one in (result, expected):
            (one * seed.to(one.dtype)).sum().backward()
        torch.testing.assert_close(result.double(), expected, rtol=off, atol=off)
        of_inputs = [each.grad.double() for each in inputs]
        torch.testing.assert_close(*of_inputs, rtol=10 * off, atol=off)
    how = operators.KERNEL if dtype is torch.float32 else operators.PLAIN_TORCH
    assert {how for _, how in operators.counts() - before} == {how}
    for one, other in zip(leaves, theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=off, atol=10 * off)
    for one, name in zip(ours[:2], names, strict=False):
        if one is not None:
            torch.testing.assert_close(one.double(), getattr(theirs, name), rtol=1e-5, atol=1e-5)
