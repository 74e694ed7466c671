"""`gallery::cross_entropy_rows` and its gradient: kernels against float64, reference against torch.

The float64 results are computed on the CPU.
"""

from __future__ import annotations

import math

import pytest
import torch
from cuda_on_host import draw, host
from cuda_on_host.memory import Guarded, poisoned
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernels.cross_entropy_bounds import bounds
from refusal import refused
from torch.nn import functional

from gallery_lib.kernels.cross_entropy import cross_entropy, with_ranks
from gallery_lib.kernels.cross_entropy_launch import gradient_launch, rows_launch
from gallery_lib.kernels.cross_entropy_reference import reference_gradient, reference_rows
from gallery_lib.kernels.runtime.launch import ELEMENTS

IGNORED = -100
CLASSES = st.one_of(st.integers(1, 40), st.sampled_from([255, 256, 257, 1000, 2048, 4097]))


def on_host(logits, labels, smoothing, of_loss, offsets=(None, None), stride_gap=0, schedule=0):
    """Return (loss, log_sum, above, gradient) from the kernels, run on the CPU.

    `stride_gap` is the number of poisoned elements between rows.
    """
    rows, classes = logits.shape
    memory = poisoned(
        (max(0, rows * (classes + stride_gap) - stride_gap),), logits.dtype, offsets[0]
    )
    view = memory.tensor.as_strided((rows, classes), (classes + stride_gap, 1))
    view.copy_(logits)
    before = memory.tensor.view(torch.uint8).clone()
    results = [poisoned((rows,), dtype) for dtype in (torch.float32, torch.float32, torch.int32)]
    gradient = poisoned((rows, classes), logits.dtype, offsets[1])
    labels, of_loss = Guarded(labels).tensor, Guarded(of_loss).tensor
    loss, log_sum, above = (result.tensor for result in results)
    host.run(rows_launch(view, labels, smoothing, IGNORED, loss, log_sum, above), schedule)
    host.run(
        gradient_launch(view, labels, smoothing, IGNORED, log_sum, of_loss, gradient.tensor),
        schedule,
    )
    for each in (memory, *results, gradient):
        each.check()
    assert torch.equal(memory.tensor.view(torch.uint8), before)
    return loss, log_sum, above, gradient.tensor


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 4),
    classes=CLASSES,
    dtype=st.sampled_from(list(ELEMENTS)),
    exponent=st.sampled_from([-140.0, -3.0, 2.0, 6.0]),
    offsets=st.tuples(draw.OFFSETS, draw.OFFSETS),
    stride_gap=st.integers(0, 9),
    smoothing=st.sampled_from([0.0, 0.1, 1.0]),
    seed=st.integers(0, 2**16),
    schedule=draw.SCHEDULES,
)
@example(
    rows=3,
    classes=4097,
    dtype=torch.float32,
    exponent=6.0,
    offsets=(1, 3),
    stride_gap=3,
    smoothing=0.1,
    seed=1,
    schedule=3,
)
@example(
    rows=2,
    classes=2048,
    dtype=torch.bfloat16,
    exponent=2.0,
    offsets=(0, 0),
    stride_gap=0,
    smoothing=0.0,
    seed=2,
    schedule=0,
)
def test_every_element_is_within_the_bound_of_float64(
    rows, classes, dtype, exponent, offsets, stride_gap, smoothing, seed, schedule
):
    generator = torch.Generator().manual_seed(seed)
    logits = draw.values(rows * classes, dtype, seed, exponent).view(rows, classes)
    labels = torch.randint(0, classes, (rows,), generator=generator)
    labels[torch.rand(rows, generator=generator) < 0.2] = IGNORED
    of_loss = torch.randn(rows, generator=generator)
    got_loss, got_log_sum, got_above, got_gradient = on_host(
        logits, labels, smoothing, of_loss, offsets, stride_gap, schedule
    )
    loss, log_sum, above = reference_rows(logits.double(), labels, smoothing, IGNORED)
    gradient = reference_gradient(
        logits.double(), labels, smoothing, IGNORED, log_sum, of_loss.double()
    )
    loss_bound, log_sum_bound, unit_bound = bounds(
        logits.double(), labels, smoothing, log_sum, classes / 256 + 16
    )
    assert ((got_loss - loss).abs() <= loss_bound).all()
    assert ((got_log_sum - log_sum).abs() <= log_sum_bound).all()
    assert torch.equal(got_above, above)
    bound = of_loss.double().abs()[:, None] * unit_bound
    bound = bound + draw.UNIT_ROUNDOFF[dtype] * (gradient.abs() + bound) + draw.SMALLEST[dtype]
    assert ((got_gradient.double() - gradient).abs() <= bound).all()
    ignored = labels == IGNORED
    assert not got_gradient[ignored].any() and not got_loss[ignored].any()


@pytest.mark.parametrize("dtype", list(ELEMENTS))
@pytest.mark.parametrize("place", [0, 7, 300, 599])
def test_infinite_and_nan_logits_give_what_float64_gives(dtype, place):
    for bad in (math.inf, -math.inf, math.nan):
        logits = draw.values(1200, dtype, 3).view(2, 600)
        logits[0, place] = bad
        labels, of_loss = torch.tensor([5, 6]), torch.ones(2)
        got = on_host(logits, labels, 0.0, of_loss)
        loss, log_sum, above = reference_rows(logits.double(), labels, 0.0, IGNORED)
        gradient = reference_gradient(
            logits.double(), labels, 0.0, IGNORED, log_sum, of_loss.double()
        )
        for ours, exact in zip(got, (loss, log_sum, above, gradient), strict=True):
            torch.testing.assert_close(
                ours.double(), exact.double(), equal_nan=True, rtol=1e-2, atol=1e-2
            )
    everything_masked = torch.full((1, 600), -math.inf, dtype=dtype)
    assert on_host(everything_masked, torch.tensor([3]), 0.0, torch.ones(1))[0].isnan().all()


def test_a_label_outside_of_the_classes_reads_nothing_and_gives_nan():
    for label in (-1, 10, 2**40):
        loss, _, _, gradient = on_host(
            torch.randn(1, 10), torch.tensor([label]), 0.0, torch.ones(1)
        )
        assert loss.isnan().all() and gradient.isnan().all()


@settings(max_examples=40, deadline=None)
@given(
    classes=st.integers(1, 50),
    smoothing=st.sampled_from([0.0, 0.1, 1.0]),
    reduction=st.sampled_from(["mean", "sum", "none"]),
    seed=st.integers(0, 999),
    ignored=st.sampled_from([-100, 0]),
)
def test_loss_and_gradient_are_those_of_torch(classes, smoothing, reduction, seed, ignored):
    torch.manual_seed(seed)
    logits = [torch.randn(6, classes, dtype=torch.float64).requires_grad_()] * 2
    labels = torch.randint(0, classes, (6,))
    labels[2] = ignored
    arguments = {"ignore_index": ignored, "label_smoothing": smoothing, "reduction": reduction}
    ours, theirs = (
        cross_entropy(logits[0], labels, **arguments),
        functional.cross_entropy(logits[1], labels, **arguments),
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12, equal_nan=True)
    weights = torch.randn_like(theirs)
    gradients = [
        torch.autograd.grad((loss * weights).sum(), logits[0])[0] for loss in (ours, theirs)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12, equal_nan=True)


def test_ranks_tell_top_k_hits():
    torch.manual_seed(0)
    logits, labels = torch.randn(50, 20), torch.randint(0, 20, (50,))
    labels[4] = IGNORED
    ranks = with_ranks(logits, labels)[1]
    for k in (1, 5):
        hits = (logits.topk(k).indices == labels[:, None]).any(1)
        assert torch.equal((ranks >= 0) & (ranks < k), hits)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck(dtype):
    logits, labels = torch.randn(4, 7, dtype=dtype), torch.tensor([1, IGNORED, 6, 0])
    torch.library.opcheck(
        torch.ops.gallery.cross_entropy_rows, (logits.requires_grad_(), labels, 0.1, IGNORED)
    )
    arguments = (logits.detach(), labels, 0.1, IGNORED, torch.rand(4), torch.rand(4))
    torch.library.opcheck(torch.ops.gallery.cross_entropy_gradient, arguments)


def test_wrong_input_is_refused():
    logits, labels = torch.randn(4, 7), torch.tensor([1, 2, 3, 4])
    for wrong in (
        (logits[0], labels),
        (logits, labels[:2]),
        (logits, labels.int()),
        (logits.long(), labels),
    ):
        with refused("logits"):
            cross_entropy(*wrong)
    with refused("reduction", "'median'"):
        cross_entropy(logits, labels, reduction="median")
    with refused("label_smoothing", 1.5):
        cross_entropy(logits, labels, label_smoothing=1.5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(ELEMENTS))
@pytest.mark.parametrize("classes", [1, 10, 1000, 50265])
def test_the_kernels_on_the_device(dtype, classes, cuda_kernels):
    torch.manual_seed(0)
    logits, labels = torch.randn(33, classes, dtype=dtype), torch.randint(0, classes, (33,))
    labels[5] = IGNORED
    on_device = logits.to(cuda_kernels).requires_grad_()
    losses, ranks = with_ranks(
        on_device, labels.to(cuda_kernels), label_smoothing=0.1, reduction="none"
    )
    losses.sum().backward()
    loss, log_sum, above = reference_rows(logits.double(), labels, 0.1, IGNORED)
    gradient = reference_gradient(
        logits.double(), labels, 0.1, IGNORED, log_sum, torch.ones(33, dtype=torch.float64)
    )
    loss_bound, _, unit_bound = bounds(logits.double(), labels, 0.1, log_sum, classes / 256 + 16)
    assert ((losses.detach().cpu() - loss).abs() <= loss_bound).all()
    assert torch.equal(ranks.cpu(), above)
    bound = (
        unit_bound
        + draw.UNIT_ROUNDOFF[dtype] * (gradient.abs() + unit_bound)
        + draw.SMALLEST[dtype]
    )
    assert ((on_device.grad.cpu().double() - gradient).abs() <= bound).all()
