"""`gallery::batch_norm_relu` and its parts: kernels against float64, the reference against torch.

The float64 results are computed on the CPU. U is the unit roundoff of fp32. A thread takes in a
32nd of its slab's rows, then the parts of 2 other threads and of 8 warps: `terms` steps, each of
which adds a few U of what has been added so far.
"""

from __future__ import annotations

import math

import pytest
import torch
from cuda_on_host import draw, host
from cuda_on_host.memory import Guarded, poisoned
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn import functional

from gallery_lib.errors import InputError
from gallery_lib.kernels import batch_norm_launch as plan
from gallery_lib.kernels import batch_norm_reference as rules
from gallery_lib.kernels.batch_norm import batch_norm_relu
from gallery_lib.kernels.batch_norm_reference import Channels, Running
from gallery_lib.kernels.gradient_statistics import ELEMENTS

U = 2.0**-24
EPS = 1e-5
ROWS = st.one_of(st.integers(1, 40), st.sampled_from([127, 128, 129, 300]))
CHANNELS = st.sampled_from([1, 3, 4, 8, 20, 64, 72, 100])
DTYPES = st.sampled_from(list(ELEMENTS))
OFFSETS = st.sampled_from([0, None, 1])
SEEDS = st.integers(0, 2**16)


class Memory:
    """Tensors that a test lays out between guard pages."""

    def __init__(self) -> None:
        self.all: list[Guarded] = []

    def take(self, values: torch.Tensor, offset: int | None = None) -> torch.Tensor:
        self.all.append(Guarded(values, offset))
        return self.all[-1].tensor

    def new(
        self, *shape: int, dtype: torch.dtype = torch.float32, offset: int | None = None
    ) -> torch.Tensor:
        self.all.append(poisoned(shape, dtype, offset))
        return self.all[-1].tensor

    def run(self, *launches, schedule: int = 0) -> None:
        for each in launches:
            host.run(each, schedule)
        for guarded in self.all:
            guarded.check()


def as_batch(matrix: torch.Tensor) -> torch.Tensor:
    """Return [rows, C] as a view [1, C, rows, 1] in channels_last."""
    return matrix[None, :, None].permute(0, 3, 1, 2)


def channel_values(memory: Memory, channels: int, seed: int, affine: bool) -> Channels:
    """Return any mean, deviation, weight and bias."""
    each = [draw.values(channels, torch.float32, seed + k) for k in range(4)]
    weight_and_bias = [memory.take(values) for values in each[2:]] if affine else [None, None]
    return Channels(memory.take(each[0]), memory.take(each[1].abs()), *weight_and_bias)


def terms_of(rows: int, slabs: plan.Slabs) -> int:
    return min(rows, slabs.rows_per_slab) // plan.LANES + 12


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


@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("momentum", [None, 0.1])
def test_training_is_that_of_torch(with_residual, affine, momentum):
    torch.manual_seed(0)

    def fresh(shape):
        return torch.randn(shape, dtype=torch.float64)

    x, residual, weight, bias, seed = (
        fresh((3, 5, 4, 2)),
        fresh((3, 5, 4, 2)),
        fresh(5),
        fresh(5),
        fresh((3, 5, 4, 2)),
    )
    outcomes = []
    for ours in (True, False):
        leaves = [each.clone().requires_grad_() for each in (x, residual, weight, bias)]
        x_, residual_, weight_, bias_ = (
            leaves[0],
            *(leaves[1:2] if with_residual else [None]),
            *(leaves[2:] if affine else [None, None]),
        )
        mean, variance, batches = torch.zeros(5).double(), torch.ones(5).double(), torch.tensor(2)
        if ours:
            result = batch_norm_relu(
                x_,
                mean,
                variance,
                weight_,
                bias_,
                residual=residual_,
                batches=batches,
                momentum=momentum,
                eps=EPS,
            )
        else:
            batches += 1
            share = 1 / batches.item() if momentum is None else momentum
            result = functional.batch_norm(x_, mean, variance, weight_, bias_, True, share, EPS)
            result = (result if residual_ is None else result + residual_).relu()
        gradients = torch.autograd.grad(
            (result * seed).sum(),
            [each for each in (x_, residual_, weight_, bias_) if each is not None],
        )
        outcomes.append((result, mean, variance, batches, *gradients))
    torch.testing.assert_close(*outcomes, rtol=1e-11, atol=1e-11)


def test_two_processes_together_are_one_large_batch():
    """SyncBatchNorm's work, with this library's operators.

    Only (count, mean, squares) and two sums are exchanged.
    """
    torch.manual_seed(0)
    operators = torch.ops.gallery
    x, gradient, weight, bias = (
        torch.randn(6, 3, 4, 4).double(),
        torch.randn(6, 3, 4, 4).double(),
        *torch.randn(2, 3).double(),
    )
    xs, gradients = x.split([2, 4]), gradient.split([2, 4])
    counts = torch.tensor([2 * 16, 4 * 16])
    means, squares = (
        torch.stack(column)
        for column in zip(*(operators.batch_norm_partial(part) for part in xs), strict=True)
    )
    channels = (
        *operators.batch_norm_combine_(counts, means, squares, None, None, None, 0.1, EPS),
        weight,
        bias,
    )
    sums = [
        operators.batch_norm_relu_sums(g, part, None, *channels)
        for g, part in zip(gradients, xs, strict=True)
    ]
    of_weight, of_bias = sums[0][0] + sums[1][0], sums[0][1] + sums[1][1]
    ours = [
        operators.batch_norm_relu_gradient(
            g, False, part, *channels, of_weight, of_bias, counts.sum()
        )
        for g, part in zip(gradients, xs, strict=True)
    ]
    leaves = [each.requires_grad_() for each in (x, weight, bias)]
    whole = functional.batch_norm(x, None, None, weight, bias, True, 0.1, EPS).relu()
    expected = torch.autograd.grad((whole * gradient).sum(), leaves)
    torch.testing.assert_close(
        (torch.cat(ours), of_weight, of_bias), expected, rtol=1e-11, atol=1e-11
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck(dtype):
    operators, x = torch.ops.gallery, torch.randn(2, 4, 3, 3, dtype=dtype)
    channels = torch.rand(4, 4).unbind()
    counts, running = torch.tensor([10, 20]), (torch.zeros(4), torch.ones(4))
    torch.library.opcheck(operators.batch_norm_partial, (x,))
    torch.library.opcheck(
        operators.batch_norm_statistics_, (x, *running, torch.tensor(0), None, EPS)
    )
    torch.library.opcheck(
        operators.batch_norm_combine_,
        (counts, torch.rand(2, 4), torch.rand(2, 4), *running, None, 0.1, EPS),
    )
    for residual in (None, torch.randn_like(x).requires_grad_()):
        arguments = (
            x.clone().requires_grad_(),
            residual,
            *channels[:2],
            *(each.clone().requires_grad_() for each in channels[2:]),
        )
        torch.library.opcheck(operators.batch_norm_relu, arguments)
        result = None if residual is None else torch.randn_like(x)
        torch.library.opcheck(operators.batch_norm_relu_sums, (x, x.clone(), result, *channels))
    torch.library.opcheck(
        operators.batch_norm_relu_gradient,
        (x, False, x.clone(), *channels, *torch.rand(2, 4).unbind(), counts[:1]),
    )


def test_wrong_input_is_refused():
    x = torch.randn(2, 3, 4, 4)
    with pytest.raises(InputError, match=r"\[N, C, H, W\]"):
        batch_norm_relu(x[0], None, None)
    with pytest.raises(InputError, match="a residual must be like x"):
        batch_norm_relu(x, None, None, residual=x.bfloat16())
    with pytest.raises(InputError, match=r"weight must be torch\.float32 \[3\]"):
        batch_norm_relu(x, None, None, torch.ones(4))
    with pytest.raises(InputError, match="both running_mean and running_var"):
        batch_norm_relu(x, torch.zeros(3), None)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(ELEMENTS))
@pytest.mark.parametrize("shape", [(8, 64, 28, 28), (3, 20, 7, 5), (2, 2048, 7, 7)])
@pytest.mark.parametrize("with_residual", [False, True])
def test_the_kernels_on_the_device(dtype, shape, with_residual, cuda_kernels):
    """Against float64 on the CPU, from the same inputs and ReLU mask."""
    torch.manual_seed(0)
    x, residual, of_result = (
        torch.randn(shape).to(dtype).to(memory_format=torch.channels_last) for _ in range(3)
    )
    weight, bias, running = (
        torch.rand(shape[1]) + 0.5,
        torch.randn(shape[1]),
        (torch.zeros(shape[1]), torch.ones(shape[1])),
    )
    leaves = [each.to(cuda_kernels).requires_grad_() for each in (x, weight, bias, residual)]
    on_device = [each.to(cuda_kernels) for each in running]
    result = batch_norm_relu(
        leaves[0], *on_device, *leaves[1:3], residual=leaves[3] if with_residual else None
    )
    result.backward(of_result.to(cuda_kernels))

    wide = [each.double() for each in running]
    mean, squares = rules.partial(x.double())
    statistics = rules.combine(
        torch.tensor([rules.rows(x)]), mean[None], squares[None], Running(*wide), EPS
    )
    c = Channels(*statistics, weight.double(), bias.double())
    of_weight, of_bias, masked = rules.sums(
        of_result.double(), x.double(), result.detach().cpu(), c
    )
    expected = [
        rules.normalise(x.double(), residual.double() if with_residual else None, c),
        *wide,
        of_weight,
        of_bias,
    ]
    expected += [
        rules.of_input(masked, x.double(), c, of_weight, of_bias, None),
        *([masked] if with_residual else []),
    ]
    gradients = [
        leaves[1].grad,
        leaves[2].grad,
        leaves[0].grad,
        *([leaves[3].grad] if with_residual else []),
    ]
    for got, exact in zip((result.detach(), *on_device, *gradients), expected, strict=True):
        roundoff = 4 * draw.UNIT_ROUNDOFF[dtype] if got.dtype is dtype else 0.0
        torch.testing.assert_close(
            got.cpu().double(),
            exact,
            rtol=1e-5 + roundoff,
            atol=1e-5 * exact.abs().max().item() + roundoff,
        )
