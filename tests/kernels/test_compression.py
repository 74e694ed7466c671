"""`gallery::pack_gradient_` and `gallery::accumulate_gradient_`: what is sent, lost and kept.

They are the two ends of a compressed gradient on the wire.
"""

from __future__ import annotations

import math

import pytest
import torch
from cuda_on_host import draw, host
from cuda_on_host.memory import Guarded
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernels.compression_on_host import DTYPES, EXPONENTS, SIZES, U, meaning, pack_on_host

from gallery_lib.kernels.compression import accumulate_, pack
from gallery_lib.kernels.compression_launch import accumulate_launch
from gallery_lib.kernels.compression_layout import GROUP, WIRES, packed_bytes
from gallery_lib.kernels.compression_reference import reference_pack


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(
    size=SIZES,
    dtype=DTYPES,
    wire=st.sampled_from(WIRES),
    exponent=EXPONENTS,
    with_error=st.booleans(),
    offset=draw.OFFSETS,
    seed=st.integers(0, 2**16),
    schedule=draw.SCHEDULES,
)
@example(
    size=2049,
    dtype=torch.float32,
    wire="int8",
    exponent=-147.0,
    with_error=True,
    offset=None,
    seed=0,
    schedule=3,
)
@example(
    size=2048,
    dtype=torch.bfloat16,
    wire="int8",
    exponent=-3.0,
    with_error=True,
    offset=0,
    seed=0,
    schedule=2,
)
def test_what_arrives_and_what_is_kept_make_up_the_gradient(
    size, dtype, wire, exponent, with_error, offset, seed, schedule
):
    gradient = draw.values(size, dtype, seed, exponent, spread=5.0)
    error = draw.values(size, torch.float32, seed + 1, exponent - 4) if with_error else None
    packed, kept = pack_on_host(gradient, error, wire, offset, schedule)
    values = gradient.float() + error if with_error else gradient.float()
    arrives = meaning(packed, size, wire)
    by_reference = pack(gradient, wire, None if error is None else error.clone())
    assert torch.equal(arrives, meaning(by_reference, size, wire))
    if wire == "int8":
        assert torch.equal(packed[: 4 * -(-size // GROUP)], by_reference[: 4 * -(-size // GROUP)])
        largest = (
            torch.nn.functional.pad(values.abs(), (0, -size % GROUP))
            .view(-1, GROUP)
            .double()
            .amax(1)
        )
        # half a step; a step is the largest value over 127, rounded, below the smallest number to 0
        allowed = (
            largest / 127 * (0.5 + 127 * U) + 127 * draw.SMALLEST[torch.float32]
        ).repeat_interleave(GROUP)[:size]
    else:
        allowed = values.double().abs() * 2.0**-8 + draw.SMALLEST[torch.bfloat16]
    assert ((values.double() - arrives).abs() <= allowed).all()
    if with_error:
        assert (
            (values.double() - arrives - kept.double()).abs()
            <= U * kept.double().abs() + draw.SMALLEST[torch.float32]
        ).all()


@settings(max_examples=40, deadline=None)
@given(
    size=SIZES,
    dtype=DTYPES,
    wire=st.sampled_from(WIRES),
    ranks=st.integers(0, 4),
    add=st.booleans(),
    factor=st.sampled_from([1.0, 1 / 3]),
    offset=draw.OFFSETS,
    seed=st.integers(0, 2**16),
    schedule=draw.SCHEDULES,
)
@example(
    size=2049,
    dtype=torch.float32,
    wire="int8",
    ranks=3,
    add=True,
    factor=1 / 3,
    offset=1,
    seed=0,
    schedule=3,
)
@example(
    size=2048,
    dtype=torch.float16,
    wire="bf16",
    ranks=2,
    add=False,
    factor=1.0,
    offset=0,
    seed=0,
    schedule=3,
)
def test_what_every_rank_sent_is_added_up(
    size, dtype, wire, ranks, add, factor, offset, seed, schedule
):
    sent = [
        reference_pack(draw.values(size, torch.float32, seed + rank), None, wire)
        for rank in range(ranks)
    ]
    packed = Guarded(
        torch.stack(sent) if sent else torch.empty(0, packed_bytes(size, wire), dtype=torch.uint8),
        0,
    )
    before = draw.values(size, dtype, seed + 9)
    sum = Guarded(before if add else torch.full_like(before, math.nan), offset)
    host.run(accumulate_launch(sum.tensor, packed.tensor, wire, factor, add), schedule)
    sum.check()
    parts = [meaning(each, size, wire) for each in sent]
    zero = torch.zeros(size, dtype=torch.float64)
    expected = factor * torch.stack([zero, *parts]).sum(0) + (before.double() if add else zero)
    magnitude = torch.stack([zero, *parts]).abs().sum(0) + before.double().abs()
    bound = (ranks + 4) * U * magnitude
    bound = bound + draw.UNIT_ROUNDOFF[dtype] * (expected.abs() + bound) + draw.SMALLEST[dtype]
    assert ((sum.tensor.double() - expected).abs() <= bound).all()
    ours = before if add else torch.full_like(before, math.nan)
    accumulate_(ours, packed.tensor, wire, factor=factor, add=add)
    assert ((ours.double() - expected).abs() <= bound).all()


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("place", [0, 300, 599])
def test_an_overflow_is_seen_in_the_sum_and_the_error_is_kept_there(bad, wire, place):
    gradient, error = draw.values(600, torch.float32, 1), draw.values(600, torch.float32, 2, -6.0)
    gradient[place] = bad
    touched = (
        torch.arange(600) == place
        if wire == "bf16"
        else torch.arange(600) // GROUP == place // GROUP
    )
    by_reference = error.clone()
    for packed, kept in (
        pack_on_host(gradient, error, wire),
        (pack(gradient, wire, by_reference), by_reference),
    ):
        sum = torch.ones(600)
        accumulate_(sum, packed, wire)
        assert torch.equal(~sum.isfinite(), touched)
        assert torch.equal(kept[touched], error[touched]) and kept.isfinite().all()
        on_host = Guarded(torch.ones(600))
        host.run(accumulate_launch(on_host.tensor, packed[None], wire, 1.0, True))
        assert torch.equal(on_host.tensor.isfinite(), ~touched)


@pytest.mark.parametrize("wire", WIRES)
def test_with_error_feedback_nothing_is_lost_over_many_steps(wire):
    """Without it small gradients beside a large one would never arrive."""
    torch.manual_seed(0)
    error, arrived, sent = torch.zeros(512), torch.zeros(512), torch.zeros(512, dtype=torch.float64)
    for _ in range(200):
        gradient = 1e-3 * (1 + torch.rand(512))
        gradient[0] = 1.0
        accumulate_(arrived, pack(gradient, wire, error), wire)
        sent += gradient.double()
    torch.testing.assert_close(arrived.double() + error.double(), sent, rtol=1e-4, atol=0)
    assert (arrived[1:] > 0.2).all()


def test_the_same_buffers_give_the_same_bits_in_any_order_of_threads():
    gradient, error = draw.values(5000, torch.bfloat16, 1), draw.values(5000, torch.float32, 2)
    for wire in WIRES:
        assert (
            len(
                {
                    pack_on_host(gradient, error, wire, 1, schedule)[0].numpy().tobytes()
                    for schedule in range(4)
                }
            )
            == 1
        )
