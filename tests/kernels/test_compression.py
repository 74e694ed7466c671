"""`gallery::pack_gradient_` and `gallery::accumulate_gradient_`: what is sent, lost and kept.

They are the two ends of a compressed gradient on the wire.
"""

from __future__ import annotations

import math

import pytest
import torch
from cuda_on_host import draw
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernels.ways import EVERY_WAY, ON_THE_CPU, InCpp

from gallery_lib.kernels.compression import (
    GROUP,
    accumulate_,
    accumulate_reference,
    pack,
    pack_reference,
    packed_bytes,
    scale_bytes,
)
from gallery_lib.kernels.runtime.launch import ELEMENTS

U = 2.0**-24
SIZES = st.one_of(
    st.integers(0, 40), st.sampled_from([255, 256, 257, 2047, 2048, 2049]), st.integers(0, 5000)
)
DTYPES, SEEDS = st.sampled_from(list(ELEMENTS)), st.integers(0, 2**16)
EXPONENTS = st.sampled_from([-147.0, -128.0, -3.0, 100.0])
FILLING = 15
"""Largest number of bytes at the ends of scales and codes that hold anything."""


def scales_of(packed, size):
    return packed[: 4 * -(-size // GROUP)]


def meaning(packed, size):
    """Return what the bytes stand for, in float64."""
    scales = scales_of(packed, size).view(torch.float32).double().repeat_interleave(GROUP)[:size]
    return packed[scale_bytes(size) :][:size].view(torch.int8).double() * scales


def packed_by(device, gradient, error, offset=None):
    """Return (packed, error afterwards), where bytes that nobody wrote are 0xFF."""
    out = device.new(packed_bytes(len(gradient)), dtype=torch.uint8, offset=0)
    kept = None if error is None else device.take(error, offset)
    device.call("pack_gradient_", device.take(gradient, offset), kept, out)
    return out, kept


def by_reference(gradient, error):
    out = torch.zeros(packed_bytes(len(gradient)), dtype=torch.uint8)
    kept = None if error is None else error.clone()
    pack_reference(gradient, kept, out)
    return out, kept


def of_way(way, dtype):
    """Return a dtype that the way has code for."""
    return torch.float32 if way is InCpp else dtype


@EVERY_WAY
@settings(max_examples=50, deadline=None)
@given(
    size=SIZES,
    dtype=DTYPES,
    exponent=EXPONENTS,
    with_error=st.booleans(),
    offset=draw.OFFSETS,
    seed=SEEDS,
    schedule=draw.SCHEDULES,
)
@example(2049, torch.float32, -147.0, True, None, 0, 3)
@example(2048, torch.bfloat16, -3.0, True, 0, 0, 2)
@example(100_003, torch.float32, -3.0, True, 0, 0, 2)
def test_what_arrives_and_what_is_kept_make_up_the_gradient(
    way, size, dtype, exponent, with_error, offset, seed, schedule
):
    dtype = of_way(way, dtype)
    gradient = draw.values(size, dtype, seed, exponent, spread=5.0)
    error = draw.values(size, torch.float32, seed + 1, exponent - 4) if with_error else None
    packed, kept = packed_by(way(schedule), gradient, error, offset)
    values = gradient.float() + error if with_error else gradient.float()
    arrives = meaning(packed, size)
    reference, reference_kept = by_reference(gradient, error)
    assert torch.equal(arrives, meaning(reference, size))
    assert torch.equal(scales_of(packed, size), scales_of(reference, size))
    padded = torch.nn.functional.pad(values.abs(), (0, -size % GROUP))
    largest = padded.view(-1, GROUP).double().amax(1)
    # half a step; a step is the largest value over 127, rounded, below the smallest number to 0
    step = largest / 127 * (0.5 + 127 * U) + 127 * draw.SMALLEST[torch.float32]
    allowed = step.repeat_interleave(GROUP)[:size]
    assert ((values.double() - arrives).abs() <= allowed).all()
    if way is InCpp and with_error:  # it subtracts the rounded product, as plain torch does
        assert torch.equal(kept, reference_kept)
    elif with_error:
        lost = (values.double() - arrives - kept.double()).abs()
        assert (lost <= U * kept.double().abs() + draw.SMALLEST[torch.float32]).all()


@EVERY_WAY
@settings(max_examples=40, deadline=None)
@given(
    size=SIZES,
    dtype=DTYPES,
    ranks=st.integers(0, 4),
    gap=st.sampled_from([0, 32, 7]),  # bytes between ranks
    add=st.booleans(),
    factor=st.sampled_from([1.0, 1 / 3]),
    offset=draw.OFFSETS,
    seed=SEEDS,
    schedule=draw.SCHEDULES,
)
@example(2049, torch.float32, 3, 0, True, 1 / 3, 1, 0, 3)
@example(2048, torch.float16, 2, 32, False, 1.0, 0, 0, 3)
def test_what_every_rank_sent_is_added_up(
    way, size, dtype, ranks, gap, add, factor, offset, seed, schedule
):
    device, dtype, each = way(schedule), of_way(way, dtype), packed_bytes(size)
    sent = [
        by_reference(draw.values(size, torch.float32, seed + rank), None)[0]
        for rank in range(ranks)
    ]
    rows = torch.full((ranks, each + gap), 77, dtype=torch.uint8)
    for row, bytes_of_rank in zip(rows, sent, strict=True):
        row[:each] = bytes_of_rank
    packed = device.take(rows, 0)[:, :each]
    before = draw.values(size, dtype, seed + 9)
    sum = device.take(before if add else torch.full_like(before, math.nan), offset)
    by_torch = sum.clone()
    device.call("accumulate_gradient_", sum, packed, factor, add)
    accumulate_reference(by_torch, packed, factor, add)
    parts = [meaning(each, size) for each in sent]
    zero = torch.zeros(size, dtype=torch.float64)
    expected = factor * torch.stack([zero, *parts]).sum(0) + (before.double() if add else zero)
    magnitude = torch.stack([zero, *parts]).abs().sum(0) + before.double().abs()
    bound = (ranks + 4) * U * magnitude
    bound = bound + draw.UNIT_ROUNDOFF[dtype] * (expected.abs() + bound) + draw.SMALLEST[dtype]
    for found in (sum, by_torch):
        assert ((found.double() - expected).abs() <= bound).all()
    assert way is not InCpp or torch.equal(sum, by_torch)


@ON_THE_CPU
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("place", [0, 300, 599])
def test_an_overflow_is_seen_in_the_sum_and_the_error_is_kept_there(way, bad, place):
    gradient, error = draw.values(600, torch.float32, 1), draw.values(600, torch.float32, 2, -6.0)
    gradient[place] = bad
    touched = torch.arange(600) // GROUP == place // GROUP
    for packed, kept in (
        packed_by(way(), gradient, error),
        by_reference(gradient, error),
    ):
        device = way()
        sum = device.take(torch.ones(600))
        device.call("accumulate_gradient_", sum, packed[None], 1.0, True)
        assert torch.equal(~sum.isfinite(), touched)
        assert torch.equal(kept[touched], error[touched]) and kept.isfinite().all()


def test_with_error_feedback_nothing_is_lost_over_many_steps():
    """Without it small gradients beside a large one would never arrive."""
    torch.manual_seed(0)
    error, arrived, sent = torch.zeros(512), torch.zeros(512), torch.zeros(512, dtype=torch.float64)
    for _ in range(200):
        gradient = 1e-3 * (1 + torch.rand(512))
        gradient[0] = 1.0
        accumulate_(arrived, pack(gradient, error))
        sent += gradient.double()
    torch.testing.assert_close(arrived.double() + error.double(), sent, rtol=1e-4, atol=0)
    assert (arrived[1:] > 0.2).all()


def test_it_takes_a_quarter_of_the_bytes():
    assert packed_bytes(10**6) == pytest.approx(10**6 * (1 + 4 / GROUP), abs=2 * FILLING)
