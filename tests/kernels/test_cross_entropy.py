"""`gallery::cross_entropy_rows` and its gradient, each way: against float64 and torch."""

from __future__ import annotations

import math

import pytest
import torch
from cuda_on_host import draw
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernels.ways import EVERY_WAY, ON_THE_CPU, InCpp, in_plain_form
from torch.nn import functional

from gallery_lib.kernels.cross_entropy import cross_entropy
from gallery_lib.kernels.runtime import operators
from gallery_lib.kernels.runtime.launch import ELEMENTS

U, IGNORED = 2.0**-24, -100
CLASSES = st.one_of(
    st.integers(1, 40), st.sampled_from([255, 256, 257, 1000, 1023, 1024, 1025, 2048, 4097])
)
BAD = pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])


def bounds(logits, labels, smoothing, log_sum, terms):
    """Return bounds of the errors of loss, of log_sum [N] and of the gradient [N, C].

    The gradient is for a unit gradient of the loss, before rounding to its dtype. `terms` is how
    many numbers are added up one after another in fp32. Each addition, each rescaling and each
    exponential (at most 2 units in the last place, and the rounding of its argument, which e^-d
    weighs) is off by a few U of a sum of positive terms. Logits are float64.
    """
    of_log_sum = (6 * terms + 100) * U + 2 * U * log_sum.abs()
    known = labels.clamp(0, logits.shape[1] - 1)
    own_logit = logits.gather(1, known[:, None])[:, 0].abs()
    of_smoothing = smoothing * (terms + 20) * U * logits.abs().sum(1) / logits.shape[1]
    of_loss = of_log_sum + 4 * U * (log_sum.abs() + own_logit) + of_smoothing
    probability = (logits - log_sum[:, None]).exp()
    of_gradient = probability * (
        of_log_sum[:, None] + 2 * U * (logits.abs() + log_sum.abs()[:, None]) + 6 * U
    ) + 6 * U * (probability + 1)
    return of_loss, of_log_sum, of_gradient


def both(call, logits, labels, smoothing, of_loss):
    """Return (loss, log_sum, gradient) from calls of the operators."""
    loss, log_sum = call("cross_entropy_rows", logits, labels, smoothing, IGNORED)
    rest = (labels, smoothing, IGNORED, log_sum, of_loss.to(log_sum.dtype))
    return loss, log_sum, call("cross_entropy_gradient", logits, *rest)


def exact(logits, labels, smoothing, of_loss):
    """Return the same in float64."""
    return both(in_plain_form, logits.double(), labels, smoothing, of_loss)


@EVERY_WAY
@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 5),
    classes=CLASSES,
    dtype=st.sampled_from(list(ELEMENTS)),
    exponent=st.sampled_from([-140.0, -3.0, 2.0, 6.0]),
    offsets=st.tuples(draw.OFFSETS, draw.OFFSETS),
    gap=st.integers(0, 9),  # poisoned elements between rows
    transposed=st.booleans(),
    smoothing=st.sampled_from([0.0, 0.1, 1.0]),
    seed=st.integers(0, 2**16),
    schedule=draw.SCHEDULES,
)
@example(3, 4097, torch.float32, 6.0, (1, 3), 3, False, 0.1, 1, 3)
@example(2, 2048, torch.bfloat16, 2.0, (0, 0), 0, False, 0.0, 2, 0)
@example(2, 2048, torch.bfloat16, 2.0, (0, 0), 0, True, 0.0, 2, 0)
@example(33, 50265, torch.float32, 2.0, (0, 0), 0, False, 0.1, 2, 0)
def test_every_element_is_within_the_bound_of_float64(
    way, rows, classes, dtype, exponent, offsets, gap, transposed, smoothing, seed, schedule
):
    dtype = dtype if dtype in way.dtypes else torch.bfloat16
    device, generator = way(schedule, offsets[1]), torch.Generator().manual_seed(seed)
    values = draw.values(rows * classes, dtype, seed, exponent).view(rows, classes)
    whole = device.new(max(0, rows * (classes + gap) - gap), dtype=dtype, offset=offsets[0])
    logits = whole.as_strided((rows, classes), (classes + gap, 1)).copy_(values)
    logits = logits.t().contiguous().t() if transposed else logits
    labels = torch.randint(0, classes, (rows,), generator=generator)
    labels[torch.rand(rows, generator=generator) < 0.2] = IGNORED
    given = torch.randn(1 if gap % 2 else rows, generator=generator)  # 1: that of a sum
    of_loss = device.take(given).expand(rows)
    got = both(device.call, logits, device.take(labels), smoothing, of_loss)
    got_loss, got_log_sum, got_gradient = got
    loss, log_sum, gradient = exact(logits, labels, smoothing, of_loss)
    terms = min(classes, 1024) / 16 + 1 if way is InCpp else classes / 256 + 16
    loss_bound, log_sum_bound, unit_bound = bounds(
        logits.double(), labels, smoothing, log_sum, terms
    )
    assert torch.equal(logits, values)
    assert ((got_loss - loss).abs() <= loss_bound).all()
    assert ((got_log_sum - log_sum).abs() <= log_sum_bound).all()
    bound = of_loss.double().abs()[:, None] * unit_bound
    bound = bound + draw.UNIT_ROUNDOFF[dtype] * (gradient.abs() + bound) + draw.SMALLEST[dtype]
    assert got_gradient.dtype is dtype and got_gradient.is_contiguous()
    assert ((got_gradient.double() - gradient).abs() <= bound).all()
    ignored = labels == IGNORED
    assert not got_gradient[ignored].any() and not got_loss[ignored].any()


@ON_THE_CPU
@BAD
@pytest.mark.parametrize("dtype", list(ELEMENTS))
@pytest.mark.parametrize("place", [0, 7, 300, 1023, 1024, 1199])
def test_infinite_and_nan_logits_give_what_float64_gives(way, bad, dtype, place):
    if dtype not in way.dtypes:
        return
    logits = draw.values(2400, dtype, 3).view(2, 1200)
    logits[0, place] = bad
    labels, of_loss, smoothing = torch.tensor([5, 6]), torch.ones(2), 0.1 * (place % 2)
    got = both(way().call, logits, labels, smoothing, of_loss)
    expected = exact(logits, labels, smoothing, of_loss)
    for ours, other in zip(got, expected, strict=True):
        torch.testing.assert_close(
            ours.double(), other.double(), equal_nan=True, rtol=1e-2, atol=1e-2
        )


@ON_THE_CPU
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masked_logits_count_for_nothing(way, dtype):
    logits = torch.full((2, 3000), -math.inf, dtype=dtype)
    logits[1, 2000:2003] = torch.tensor([0.0, 1.0, 2.0], dtype=dtype)
    labels = torch.tensor([3, 2001])
    loss, log_sum, gradient = both(way().call, logits, labels, 0.0, torch.ones(2))
    assert loss[0].isnan()
    expected = torch.logsumexp(torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64), 0)
    torch.testing.assert_close(log_sum[1].double(), expected, rtol=1e-6, atol=1e-6)
    assert gradient[1].count_nonzero() == 3


@ON_THE_CPU
@pytest.mark.parametrize("dtype", list(ELEMENTS))
def test_logits_at_the_ends_of_the_range_have_the_log_of_the_sum_of_float64(way, dtype):
    if dtype not in way.dtypes:
        return
    ends = torch.finfo(dtype)
    logits = torch.full((4, 1200), ends.min, dtype=dtype)
    logits[1], logits[2, 7], logits[3, ::2] = ends.max, ends.max, -math.inf
    labels, of_loss = torch.tensor([1, 1, 7, 1]), torch.ones(4)
    log_sum = both(way().call, logits, labels, 0.0, of_loss)[1]
    expected = exact(logits, labels, 0.0, of_loss)[1]
    torch.testing.assert_close(log_sum.double(), expected, rtol=1e-6, atol=0)


def test_the_exponential_of_the_cpp_is_within_two_units_of_float64():
    """The gradient of a row whose log of the sum is given as 0 is the exponential itself."""

    def exponential(logits):
        rest = (torch.tensor([0]), 0.0, IGNORED, torch.zeros(1), torch.ones(1))
        return InCpp().call("cross_entropy_gradient", logits, *rest)[0, 1:]

    logits = torch.linspace(-86.5, 88.7, 200_001)[None]
    wanted = logits[0, 1:].double().exp()
    assert ((exponential(logits).double() - wanted).abs() <= 2 * 2.0**-23 * wanted).all()
    far = torch.tensor([[0.0, -86.7, -1e30, -math.inf, 90.0, 1e30, math.nan]])
    wanted = torch.tensor([0.0, 0.0, 0.0, math.inf, math.inf, math.nan])
    torch.testing.assert_close(exponential(far), wanted, equal_nan=True, rtol=0, atol=0)


@EVERY_WAY
def test_a_label_outside_of_the_classes_reads_nothing_and_gives_nan(way):
    for label in (-1, 10, 2**40):
        labels = torch.tensor([label])
        loss, _, gradient = both(way().call, torch.randn(1, 10), labels, 0.0, torch.ones(1))
        assert loss.isnan().all() and gradient.isnan().all()


@settings(max_examples=40, deadline=None)
@given(
    classes=st.integers(1, 50),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    smoothing=st.sampled_from([0.0, 0.1, 1.0]),
    reduction=st.sampled_from(["mean", "sum", "none"]),
    seed=st.integers(0, 999),
    ignored=st.sampled_from([-100, 0]),
)
@example(1500, torch.float32, 0.1, "mean", 0, -100)
@example(1500, torch.bfloat16, 0.1, "none", 0, -100)
def test_loss_and_gradient_are_those_of_torch(classes, dtype, smoothing, reduction, seed, ignored):
    torch.manual_seed(seed)
    logits, labels = torch.randn(6, classes, dtype=dtype), torch.randint(0, classes, (6,))
    labels[2] = ignored
    options = {"ignore_index": ignored, "label_smoothing": smoothing, "reduction": reduction}
    outcomes, before = [], operators.counts()
    for function, kind in ((cross_entropy, dtype), (functional.cross_entropy, torch.float64)):
        leaf = logits.to(kind).requires_grad_()
        loss = function(leaf, labels, **options)
        weights = torch.linspace(-1, 2, loss.numel()).reshape(loss.shape)
        (gradient,) = torch.autograd.grad((loss * weights).sum(), leaf)
        outcomes.append((loss.double(), gradient.double()))
    how = operators.PLAIN_TORCH if dtype is torch.float64 else operators.KERNEL
    assert {how for _, how in operators.counts() - before} == {how}
    off, unit = (1e-12, 1e-12) if dtype is torch.float64 else (2e-6, 2 * draw.UNIT_ROUNDOFF[dtype])
    for (ours, theirs), far in zip(zip(*outcomes, strict=True), (off, max(off, unit)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=far, atol=off, equal_nan=True)
