"""Batch norm in C++ on the CPU: against float64 and torch's layers, threads, refusals."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from cuda_on_host import draw
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernels.batch_norm_memory import EPS, SEEDS, U, as_batch
from own_batch_norms import every_kind_of_layer
from refusal import refused
from torch import nn

from gallery_lib.acceleration import accelerate, techniques
from gallery_lib.compiler.fusion.batch_norm import fuse_batchnorm
from gallery_lib.config import Compute, Config
from gallery_lib.kernels import batch_norm_cpp
from gallery_lib.kernels import batch_norm_two_gradients as two_gradients  # noqa: F401
from gallery_lib.kernels.runtime import call_counts, cpu_tensors

pytestmark = pytest.mark.skipif(
    not batch_norm_cpp.available(), reason="needs a C++ compiler with OpenMP"
)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16])
ROWS = st.one_of(st.integers(1, 40), st.sampled_from([63, 64, 65, 300, 5000]))
CHANNELS = st.sampled_from([1, 3, 16, 17, 31, 64, 100, 2048, 2051])
OPERATORS = torch.ops.gallery


@pytest.fixture(autouse=True)
def threads():
    """Let a test set the number of threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def batch(rows: int, channels: int, dtype: torch.dtype, seed: int, centre: float = 0.0):
    values = draw.values(rows * channels, dtype, seed).double() + centre
    return as_batch(values.view(rows, channels).to(dtype))


def matrix(x: torch.Tensor) -> torch.Tensor:
    """Return a batch as [rows, C] in fp64."""
    return x[0, :, :, 0].t().double()


@settings(max_examples=30, deadline=None)
@given(
    rows=ROWS,
    channels=CHANNELS,
    dtype=DTYPES,
    centre=st.sampled_from([0.0, 1.0, 200.0]),
    momentum=st.sampled_from([None, 0.1, 1.0]),
    threads=st.integers(1, 3),
    seed=SEEDS,
)
@example(rows=9000, channels=64, dtype=torch.bfloat16, centre=0.0, momentum=0.1, threads=2, seed=1)
def test_statistics_are_those_of_float64(rows, channels, dtype, centre, momentum, threads, seed):
    torch.set_num_threads(threads)
    x = batch(rows, channels, dtype, seed, centre)
    running = [torch.rand(channels), torch.rand(channels)]
    old, batches, before = [each.double() for each in running], torch.tensor(3), call_counts.CALLS
    done = before["batch_norm_statistics_", call_counts.KERNEL]
    mean, inverse = OPERATORS.batch_norm_statistics_(x, *running, batches, momentum, EPS)
    partial_mean, squares = OPERATORS.batch_norm_partial(x)
    assert before["batch_norm_statistics_", call_counts.KERNEL] == done + 1
    exact = matrix(x)
    exact_mean, variance = exact.mean(0), exact.var(0, correction=0)
    spread = (exact.amax(0) - exact.amin(0)) + 2.0**-100
    mean_bound = 12 * U * spread + 2 * U * exact_mean.abs()
    variance_bound = 24 * U * (variance + spread.square())
    assert torch.equal(mean, partial_mean) and batches.item() == 4
    assert ((mean - exact_mean).abs() <= mean_bound).all()
    assert ((squares / rows - variance).abs() <= variance_bound).all()
    expected = (variance + EPS).rsqrt()
    assert (
        (inverse - expected).abs() <= expected * (variance_bound / (variance + EPS) + 2 * U)
    ).all()
    share, unbiased = 1 / 4 if momentum is None else momentum, rows / max(rows - 1, 1)
    for got, first, second, bound in (
        (running[0], old[0], exact_mean, mean_bound),
        (running[1], old[1], variance * unbiased, variance_bound * unbiased),
    ):
        wanted = (1 - share) * first + share * second
        assert ((got - wanted).abs() <= share * bound + 2 * U * wanted.abs()).all()


@settings(max_examples=40, deadline=None)
@given(
    rows=ROWS,
    channels=CHANNELS,
    dtype=DTYPES,
    affine=st.booleans(),
    parts=st.sampled_from([0, 1, 2]),  # of the gradient; 0: no residual
    threads=st.integers(1, 3),
    seed=SEEDS,
)
@example(rows=9000, channels=64, dtype=torch.bfloat16, affine=True, parts=2, threads=2, seed=1)
@example(rows=9000, channels=64, dtype=torch.bfloat16, affine=True, parts=0, threads=2, seed=1)
def test_results_and_gradients_are_within_the_bound_of_float64(
    rows, channels, dtype, affine, parts, threads, seed
):
    torch.set_num_threads(threads)
    x, residual, first, second = (batch(rows, channels, dtype, seed + k) for k in range(4))
    values = [draw.values(channels, torch.float32, seed + k) for k in range(4, 8)]
    mean, inverse, weight, bias = values[0], values[1].abs(), *values[2:]
    c = (mean, inverse, weight, bias) if affine else (mean, inverse, None, None)
    result = OPERATORS.batch_norm_relu(x, residual if parts else None, *c)
    off = matrix(x) - mean.double()
    scale = inverse.double() * (weight.double() if affine else 1.0)
    shift = bias.double() if affine else torch.zeros(channels).double()
    beside = matrix(residual) if parts else torch.zeros(1).double()
    exact = (off * scale + shift + beside).relu()
    bound = 4 * U * ((off * scale).abs() + shift.abs() + beside.abs())
    unit, least = draw.UNIT_ROUNDOFF[dtype], draw.SMALLEST[dtype]
    assert ((matrix(result) - exact).abs() <= bound + unit * (exact + bound) + least).all()

    gradient = first + second if parts == 2 else first
    given_result = result if parts else None
    before = call_counts.counts()
    if parts == 2:
        sums = OPERATORS.batch_norm_relu_sums_of_two(first, second, x, result, *c)
    else:
        sums = OPERATORS.batch_norm_relu_sums(first, x, given_result, *c)
    of_weight, of_bias, masked = sums
    arguments = (masked, True) if parts else (first, False)
    of_x = OPERATORS.batch_norm_relu_gradient(*arguments, x, *c, of_weight, of_bias, None)
    assert {how for _, how in call_counts.counts() - before} == {call_counts.KERNEL}
    passed = gradient.masked_fill(result <= 0, 0)
    assert not parts or torch.equal(masked, passed)
    g = matrix(passed)
    products, deviation = g * off, inverse.double()
    assert ((of_bias - g.sum(0)).abs() <= 12 * U * g.abs().sum(0)).all()
    of_products = 16 * U * products.abs().sum(0) * deviation
    assert ((of_weight - products.sum(0) * deviation).abs() <= of_products).all()
    slope, average = of_weight.double() * deviation / rows, of_bias.double() / rows
    exact = scale * (g - average - off * slope)
    bound = 8 * U * scale.abs() * (g.abs() + average.abs() + (off * slope).abs())
    assert ((matrix(of_x) - exact).abs() <= bound + unit * (exact.abs() + bound) + least).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_statistics_are_as_near_float64_as_torchs(dtype):
    x = torch.randn(8, 64, 40, 40, generator=torch.Generator().manual_seed(0)) * 2 + 3
    x = x.to(dtype).to(memory_format=torch.channels_last)
    ours = OPERATORS.batch_norm_statistics_(x, None, None, None, 0.1, EPS)
    theirs = torch.native_batch_norm(x, None, None, None, None, True, 0.1, EPS)[1:]
    variance, mean = torch.var_mean(x.double(), (0, 2, 3), correction=0)
    for got, other, exact in zip(ours, theirs, (mean, (variance + EPS).rsqrt()), strict=True):
        assert (got - exact).abs().max() <= (other - exact).abs().max() + U * exact.abs().max()


def test_the_number_of_threads_changes_no_bit():
    x, gradient, residual = (
        torch.randn(4, 40, 60, 60).bfloat16().to(memory_format=torch.channels_last)
        for _ in range(3)
    )
    seen = []
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        c = OPERATORS.batch_norm_statistics_(x, None, None, None, 0.1, EPS)
        result = OPERATORS.batch_norm_relu(x, residual, *c, None, None)
        *sums, masked = OPERATORS.batch_norm_relu_sums(gradient, x, result, *c, None, None)
        of_x = OPERATORS.batch_norm_relu_gradient(masked, True, x, *c, None, None, *sums, None)
        seen.append((*c, result, *sums, masked, of_x))
    for other in seen[1:]:
        assert all(map(torch.equal, seen[0], other))


@every_kind_of_layer
def test_every_kind_of_layer_trains_and_evaluates_as_torchs_in_float64(arguments):
    torch.manual_seed(0)
    ours = nn.Sequential(nn.BatchNorm2d(20, **arguments), nn.ReLU())
    for parameter in ours.parameters():
        nn.init.normal_(parameter)
    theirs = copy.deepcopy(ours).double()
    fuse_batchnorm(ours)
    before = call_counts.counts()
    for step in range(3):
        x = torch.randn(3, 20, 9, 7).to(memory_format=torch.channels_last) + step
        seed, leaves = torch.randn(x.shape), (x.requires_grad_(), x.detach().double())
        leaves[1].requires_grad_()
        results = [model(leaf) for model, leaf in zip((ours, theirs), leaves, strict=True)]
        for result in results:
            (result * seed.to(result.dtype)).sum().backward()
        torch.testing.assert_close(results[0].double(), results[1], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(leaves[0].grad.double(), leaves[1].grad, rtol=1e-4, atol=1e-5)
    assert {how for _, how in call_counts.counts() - before} == {call_counts.KERNEL}
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=1e-5, atol=1e-4)
    x = torch.randn(3, 20, 9, 7)
    torch.testing.assert_close(
        ours.eval()(x).double(), theirs.eval()(x.double()), rtol=1e-5, atol=1e-5
    )
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value.to(ours.state_dict()[name].dtype))


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_infinite_and_nan_values_reach_statistics_and_results_and_no_other_channel(bad, dtype):
    x = batch(200, 20, dtype, 3)
    x[0, 5, 150] = bad
    good = torch.arange(20) != 5
    mean, inverse = OPERATORS.batch_norm_statistics_(x, None, None, None, 0.1, EPS)
    result = matrix(OPERATORS.batch_norm_relu(x, None, mean, inverse, None, None))
    assert (
        torch.equal(mean.isfinite(), good) and inverse[5].isnan() and inverse[good].isfinite().all()
    )
    assert result[:, 5].isnan().all() and result[:, good].isfinite().all()


def test_what_rounds_to_zero_has_no_gradient():
    x = torch.full((1, 8, 4, 1), 2.0**-67, dtype=torch.bfloat16)
    x = x.to(memory_format=torch.channels_last)
    c = (torch.zeros(8), torch.full((8,), 2.0**-67), None, None)  # 2^-134 rounds to 0
    assert not OPERATORS.batch_norm_relu(x, None, *c).any()
    assert not OPERATORS.batch_norm_relu_sums(torch.ones_like(x), x, None, *c)[1].any()


def test_other_layouts_are_copied_and_other_dtypes_left_to_plain_torch():
    x, c = torch.randn(2, 4, 5, 6), (torch.zeros(4), torch.ones(4), None, None)
    result = OPERATORS.batch_norm_relu(x, None, *c)
    assert torch.equal(result, x.relu())
    assert result.is_contiguous(memory_format=torch.channels_last)
    before = call_counts.counts()
    OPERATORS.batch_norm_relu(x.half(), None, *c)
    OPERATORS.batch_norm_relu(x[:0], None, *c)
    assert {how for _, how in call_counts.counts() - before} == {call_counts.PLAIN_TORCH}


def test_what_does_not_fit_together_is_refused_and_nothing_is_written():
    x, mean = torch.ones(2, 4, 3, 3).to(memory_format=torch.channels_last), torch.ones(4)

    def forward(x, written, mean=mean, residual=None):
        batch_norm_cpp._call("forward", x, None, None, None, residual, written, mean, torch.ones(4))

    written = torch.zeros_like(x)
    for name, values, arguments in (
        ("x", "torch.float16", (x.half(), written)),
        ("x", "layout", (x.contiguous(), written)),
        ("written", "shape", (x, torch.zeros(2, 4, 3, 1))),
        ("residual", "dtype", (x, written, mean, x.bfloat16())),
        ("mean", "shape", (x, written, torch.ones(5))),
        ("written", "shares memory", (x, x)),
    ):
        with refused(name, values, error=cpu_tensors.Refused):
            forward(*arguments)
    with refused("x", "do not fit together", error=cpu_tensors.Refused):
        batch_norm_cpp._call("forward", x)
    assert not written.any() and (x == 1).all()


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("asked_for", [True, False])
def test_accelerate_uses_it_where_it_is_there_and_asked_for(asked_for, there, monkeypatch):
    if not there:
        monkeypatch.setattr(batch_norm_cpp, "available", lambda: False)
    plain = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    config = Config(compute=Compute(batch_norm_kernels=asked_for))
    config.memory.layout, config.compiler.enabled = "channels_last", False
    model, _ = accelerate(copy.deepcopy(plain), config=config)
    images, before = torch.randn(2, 3, 8, 8), call_counts.counts()
    model(images.to(memory_format=torch.channels_last)).sum().backward()
    names = ("statistics_", "relu", "relu_sums", "relu_gradient")
    ran = {(f"batch_norm_{name}", call_counts.KERNEL) for name in names}
    assert (call_counts.counts() - before).keys() == (ran if asked_for and there else set())
    said = techniques(model).get("batch norm", "")
    assert ("fused" in said, "C++ could not be built" in said) == (
        asked_for and there,
        asked_for and not there,
    )
    assert model.state_dict().keys() == plain.state_dict().keys()
