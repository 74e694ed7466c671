"""Cross-entropy in C++ on the CPU: against float64 and torch, threads, memory, refusals."""

from __future__ import annotations

import math

import pytest
import torch
from cuda_on_host import draw
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernels.cross_entropy_bounds import bounds

from gallery_lib.kernels import cross_entropy_cpp as cpp
from gallery_lib.kernels.cross_entropy import cross_entropy, with_ranks
from gallery_lib.kernels.cross_entropy_reference import reference_gradient, reference_rows
from gallery_lib.kernels.runtime import call_counts, cpu_tensors

pytestmark = pytest.mark.skipif(not cpp.available(), reason="needs a C++ compiler with OpenMP")
IGNORED = -100
DTYPES = st.sampled_from(cpp.DTYPES)
CLASSES = st.one_of(st.integers(1, 40), st.sampled_from([255, 1023, 1024, 1025, 2048, 4097]))


def in_cpp(logits, labels, smoothing, of_loss):
    """Return (loss, log_sum, above, gradient) from the C++, through the operators."""
    operators = torch.ops.gallery
    before = call_counts.counts()
    loss, log_sum, above = operators.cross_entropy_rows(logits, labels, smoothing, IGNORED)
    gradient = operators.cross_entropy_gradient(
        logits, labels, smoothing, IGNORED, log_sum, of_loss
    )
    calls = call_counts.counts() - before
    if logits.numel():
        assert calls["cross_entropy_rows", call_counts.KERNEL] == 1
        assert calls["cross_entropy_gradient", call_counts.KERNEL] == 1
    return loss, log_sum, above, gradient


@settings(max_examples=100, deadline=None)
@given(
    rows=st.integers(0, 5),
    classes=CLASSES,
    dtype=DTYPES,
    exponent=st.sampled_from([-140.0, -3.0, 2.0, 6.0]),
    smoothing=st.sampled_from([0.0, 0.1, 1.0]),
    layout=st.sampled_from(["as they are", "with gaps", "transposed"]),
    seed=st.integers(0, 2**16),
)
@example(3, 4097, torch.float32, 6.0, 0.1, "with gaps", 1)
@example(2, 2048, torch.bfloat16, 2.0, 0.0, "transposed", 2)
def test_every_element_is_within_the_bound_of_float64(
    rows, classes, dtype, exponent, smoothing, layout, seed
):
    generator = torch.Generator().manual_seed(seed)
    logits = draw.values(rows * classes, dtype, seed, exponent).view(rows, classes)
    if layout != "as they are":
        larger = torch.full((rows, classes + 3), torch.nan, dtype=dtype)
        larger = larger.t().contiguous().t() if layout == "transposed" else larger
        logits = larger[:, :classes].copy_(logits)
    labels = torch.randint(0, classes, (rows,), generator=generator)
    labels[torch.rand(rows, generator=generator) < 0.2] = IGNORED
    of_loss = torch.randn(rows, generator=generator)
    got_loss, got_log_sum, got_above, got_gradient = in_cpp(logits, labels, smoothing, of_loss)
    loss, log_sum, above = reference_rows(logits.double(), labels, smoothing, IGNORED)
    gradient = reference_gradient(
        logits.double(), labels, smoothing, IGNORED, log_sum, of_loss.double()
    )
    loss_bound, log_sum_bound, unit_bound = bounds(
        logits.double(), labels, smoothing, log_sum, min(classes, 1024) / 16 + 1
    )
    assert ((got_loss - loss).abs() <= loss_bound).all()
    assert ((got_log_sum - log_sum).abs() <= log_sum_bound).all()
    assert torch.equal(got_above, above)
    bound = of_loss.double().abs()[:, None] * unit_bound
    bound = bound + draw.UNIT_ROUNDOFF[dtype] * (gradient.abs() + bound) + draw.SMALLEST[dtype]
    assert got_gradient.dtype is dtype and got_gradient.is_contiguous()
    assert ((got_gradient.double() - gradient).abs() <= bound).all()
    ignored = labels == IGNORED
    assert not got_gradient[ignored].any() and not got_loss[ignored].any()


@pytest.mark.parametrize("dtype", cpp.DTYPES)
@pytest.mark.parametrize("place", [0, 7, 300, 1023, 1024, 1199])
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_infinite_and_nan_logits_give_what_float64_gives(dtype, place, bad):
    logits = draw.values(2400, dtype, 3).view(2, 1200)
    logits[0, place] = bad
    labels, of_loss = torch.tensor([5, 6]), torch.ones(2)
    got = in_cpp(logits, labels, 0.0, of_loss)
    loss, log_sum, above = reference_rows(logits.double(), labels, 0.0, IGNORED)
    gradient = reference_gradient(logits.double(), labels, 0.0, IGNORED, log_sum, of_loss.double())
    for ours, exact in zip(got, (loss, log_sum, above, gradient), strict=True):
        torch.testing.assert_close(
            ours.double(), exact.double(), equal_nan=True, rtol=1e-2, atol=1e-2
        )


@pytest.mark.parametrize("dtype", cpp.DTYPES)
def test_masked_logits_count_for_nothing(dtype):
    logits = torch.full((2, 3000), -math.inf, dtype=dtype)
    logits[1, 2000:2003] = torch.tensor([0.0, 1.0, 2.0], dtype=dtype)
    loss, log_sum, above, gradient = in_cpp(logits, torch.tensor([3, 2001]), 0.0, torch.ones(2))
    assert loss[0].isnan()
    expected = torch.logsumexp(torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64), 0)
    torch.testing.assert_close(log_sum[1].double(), expected, rtol=1e-6, atol=1e-6)
    assert above[1] == 1 and gradient[1].count_nonzero() == 3


def test_the_exponential_is_within_two_units_of_float64():
    """The gradient of a row whose log of the sum is given as 0 is the exponential itself."""
    logits = torch.linspace(-86.5, 88.7, 200_001)[None]
    gradient = torch.ops.gallery.cross_entropy_gradient(
        logits, torch.tensor([0]), 0.0, IGNORED, torch.zeros(1), torch.ones(1)
    )[0, 1:]
    exact = logits[0, 1:].double().exp()
    assert ((gradient.double() - exact).abs() <= 2 * 2.0**-23 * exact).all()
    far = torch.tensor([[0.0, -86.7, -1e30, -math.inf, 90.0, 1e30, math.nan]])
    gradient = torch.ops.gallery.cross_entropy_gradient(
        far, torch.tensor([0]), 0.0, IGNORED, torch.zeros(1), torch.ones(1)
    )[0, 1:]
    expected = torch.tensor([0.0, 0.0, 0.0, math.inf, math.inf, math.nan])
    torch.testing.assert_close(gradient, expected, equal_nan=True, rtol=0, atol=0)


def test_a_label_outside_of_the_classes_reads_nothing_and_gives_nan():
    for label in (-1, 10, 2**40):
        logits, labels = torch.randn(1, 10), torch.tensor([label])
        loss, _, _, gradient = in_cpp(logits, labels, 0.0, torch.ones(1))
        assert loss.isnan().all() and gradient.isnan().all()


def test_no_bit_depends_on_the_number_of_threads():
    torch.manual_seed(0)
    logits = torch.randn(7, 5000, dtype=torch.bfloat16)
    labels, of_loss = torch.randint(0, 5000, (7,)), torch.rand(7)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(in_cpp(logits, labels, 0.1, of_loss))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


@pytest.mark.parametrize("dtype", cpp.DTYPES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_loss_and_gradient_are_those_of_torch(dtype, reduction):
    torch.manual_seed(0)
    logits = torch.randn(60, 1500, dtype=dtype).requires_grad_()
    labels = torch.randint(0, 1500, (60,))
    labels[::7] = IGNORED
    before = call_counts.counts()
    ours = cross_entropy(logits, labels, label_smoothing=0.1, reduction=reduction)
    (of_ours,) = torch.autograd.grad(ours.sum(), logits)
    calls = call_counts.counts() - before
    assert calls["cross_entropy_rows", call_counts.KERNEL] == 1
    assert calls["cross_entropy_gradient", call_counts.KERNEL] == 1
    exact = logits.detach().double().requires_grad_()
    theirs = torch.nn.functional.cross_entropy(
        exact, labels, label_smoothing=0.1, reduction=reduction
    )
    (of_theirs,) = torch.autograd.grad(theirs.sum(), exact)
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-6, atol=1e-6)
    unit = draw.UNIT_ROUNDOFF[dtype]
    torch.testing.assert_close(of_ours.double(), of_theirs, rtol=2 * unit, atol=1e-8)


def test_ranks_tell_top_k_hits():
    torch.manual_seed(0)
    logits, labels = torch.randn(50, 1100), torch.randint(0, 1100, (50,))
    ranks = with_ranks(logits, labels)[1]
    hits = (logits.topk(5).indices == labels[:, None]).any(1)
    assert torch.equal(ranks < 5, hits)


def test_tensors_that_do_not_fit_are_refused_by_name():
    logits, labels = torch.randn(4, 9), torch.tensor([1, 2, 3, 4])
    loss, log_sum, above = torch.empty(4), torch.empty(4), torch.empty(4, dtype=torch.int32)
    for name, wrong in {
        "logits": (logits.double(), labels, loss, log_sum, above),
        "labels": (logits, labels.int(), loss, log_sum, above),
        "loss": (logits, labels, loss[:3], log_sum, above),
        "above": (logits, labels, loss, log_sum, above.long()),
        "log_sum": (logits, labels, loss, loss, above),
    }.items():
        with pytest.raises(cpu_tensors.Refused, match=f"cross_entropy_forward .*take {name}, "):
            cpp.forward(0.0, IGNORED, wrong)
    read = (labels, log_sum, loss)
    with pytest.raises(cpu_tensors.Refused, match=r"take logits, .*gaps, or"):
        cpp.backward(0.0, IGNORED, (logits[:, :5], *read, torch.empty(4, 5)))
    with pytest.raises(cpu_tensors.Refused, match=r"take logits, .*layout"):
        cpp.backward(0.0, IGNORED, (logits.t().contiguous().t(), *read, torch.empty(4, 9)))
    with pytest.raises(cpu_tensors.Refused, match=r"take gradient, .*shares memory"):
        cpp.backward(0.0, IGNORED, (logits, *read, logits))
