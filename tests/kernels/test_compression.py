"""`gallery::pack_gradient_` and `gallery::accumulate_gradient_`: what is sent, lost and kept.

They are the two ends of a compressed gradient on the wire.
"""

from __future__ import annotations

import math

import pytest
import torch
from cuda_on_host import draw, host
from cuda_on_host.memory import Guarded, poisoned
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gallery_lib.errors import InputError
from gallery_lib.kernels.compression import (
    CPU_SOURCE,
    GROUP,
    WIRES,
    accumulate_,
    accumulate_launch,
    pack,
    pack_launch,
    packed_bytes,
    reference_accumulate,
    reference_pack,
    scale_bytes,
)
from gallery_lib.kernels.gradient_statistics import ELEMENTS
from gallery_lib.kernels.runtime import cpu_library
from gallery_lib.kernels.runtime.fallback import KernelsNotUsed

U = 2.0**-24
SIZES = st.one_of(
    st.integers(0, 40), st.sampled_from([255, 256, 257, 2047, 2048, 2049]), st.integers(0, 5000)
)
DTYPES = st.sampled_from(list(ELEMENTS))
EXPONENTS = st.sampled_from([-147.0, -128.0, -3.0, 100.0])
FILLING = 15
"""Largest number of bytes at the ends of scales and codes that hold anything."""


def pack_on_host(gradient, error, wire, offset=None, schedule=0):
    """Return (packed, error afterwards) from the kernel, run on the CPU.

    All bytes that nobody wrote are 0xFF.
    """
    packed = poisoned((packed_bytes(len(gradient), wire),), torch.uint8, 0)
    memory = [
        Guarded(gradient, offset),
        packed,
        *([] if error is None else [Guarded(error, offset)]),
    ]
    host.run(
        pack_launch(
            memory[0].tensor, None if error is None else memory[2].tensor, wire, packed.tensor
        ),
        schedule,
    )
    for each in memory:
        each.check()
    return packed.tensor, None if error is None else memory[2].tensor


def meaning(packed: torch.Tensor, size: int, wire: str) -> torch.Tensor:
    """Return what the bytes stand for, in float64."""
    if wire == "bf16":
        return packed[: 2 * size].view(torch.bfloat16).double()
    scales = (
        packed[: 4 * -(-size // GROUP)].view(torch.float32).double().repeat_interleave(GROUP)[:size]
    )
    return packed[scale_bytes(size) :][:size].view(torch.int8).double() * scales


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


def codes_and_scales(packed: torch.Tensor, size: int) -> list[torch.Tensor]:
    """Return the bytes of an int8 buffer without its padding."""
    return [packed[: 4 * -(-size // GROUP)], packed[scale_bytes(size) :][:size]]


@pytest.mark.parametrize("size", [0, 1, 255, GROUP, 5 * GROUP + 7, 3000])
@pytest.mark.parametrize("with_error", [False, True])
@pytest.mark.parametrize("exponent", [-147.0, -3.0, 100.0])
def test_the_cpp_gives_the_bits_of_plain_torch_and_stays_within_its_buffers(
    size, with_error, exponent
):
    assert cpu_library.library(CPU_SOURCE) is not None
    gradient, before = (
        draw.values(size, torch.float32, 1, exponent, spread=5.0),
        draw.values(size, torch.float32, 2),
    )
    if size > GROUP:
        gradient[:GROUP] = 0
        gradient[GROUP + 3 :: 900] = math.inf
        gradient[-1] = math.nan
    error = draw.values(size, torch.float32, 3, exponent - 4) if with_error else None
    kept = Guarded(error) if error is not None else None
    given, out = Guarded(gradient), poisoned((packed_bytes(size, "int8"),), torch.uint8, 0)
    reference_kept = None if error is None else error.clone()
    pack(given.tensor, "int8", None if kept is None else kept.tensor, out=out.tensor)
    expected = reference_pack(gradient, reference_kept, "int8")
    for found, wanted in zip(
        codes_and_scales(out.tensor, size), codes_and_scales(expected, size), strict=True
    ):
        assert torch.equal(found, wanted)
    # There are gaps between ranks.
    rows = torch.full((3, packed_bytes(size, "int8") + 32), 77, dtype=torch.uint8)
    for row, values in zip(rows, (gradient, before, gradient.flip(0).contiguous()), strict=True):
        row[: rows.shape[1] - 32] = reference_pack(values, None, "int8")
    sums, reference_sums = Guarded(before), before.clone()
    accumulate_(sums.tensor, rows[:, : rows.shape[1] - 32], "int8", factor=0.3)
    reference_accumulate(reference_sums, rows, "int8", 0.3, True)
    torch.testing.assert_close(sums.tensor, reference_sums, rtol=0, atol=0, equal_nan=True)
    for each in (given, out, sums, *([] if kept is None else [kept])):
        each.check()
    if kept is not None:
        assert torch.equal(kept.tensor, reference_kept)


@pytest.mark.parametrize("compiler", [None, "false", "/nowhere/g++"])
def test_without_a_compiler_plain_torch_does_the_work_and_says_so(compiler, monkeypatch, tmp_path):
    monkeypatch.setattr(cpu_library.hardware, "cpp_compiler", lambda: compiler)
    monkeypatch.setenv("GALLERY_CACHE_DIR", str(tmp_path))
    cpu_library.library.cache_clear()
    try:
        with pytest.warns(
            KernelsNotUsed,
            match=r"compression.cpp is not used, plain torch does its work more slowly",
        ):
            packed = pack(torch.linspace(-1, 1, 300), "int8")
        sums = torch.zeros(300)
        accumulate_(sums, packed, "int8")  # says it once
        torch.testing.assert_close(sums, torch.linspace(-1, 1, 300), rtol=0, atol=0.5 / 127)
        assert not list(tmp_path.rglob("*.so"))
    finally:
        cpu_library.library.cache_clear()


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


def test_int8_takes_a_quarter_of_the_bytes_and_bf16_half():
    assert packed_bytes(10**6, "int8") == pytest.approx(10**6 * (1 + 4 / GROUP), abs=2 * FILLING)
    assert packed_bytes(10**6, "bf16") == 2 * 10**6


@pytest.mark.slow
@pytest.mark.parametrize("wire", WIRES)
def test_opcheck(wire):
    gradient, error = torch.randn(300), torch.randn(300)
    out = torch.zeros(packed_bytes(300, wire), dtype=torch.uint8)
    torch.library.opcheck(torch.ops.gallery.pack_gradient_, (gradient, error, wire, out))
    torch.library.opcheck(torch.ops.gallery.pack_gradient_, (gradient, None, wire, out))
    packed = torch.stack([pack(gradient, wire), pack(error, wire)])
    torch.library.opcheck(
        torch.ops.gallery.accumulate_gradient_, (gradient.bfloat16(), packed, wire, 0.5, True)
    )


def test_wrong_input_is_refused():
    gradient = torch.randn(10)
    with pytest.raises(InputError, match="Did you mean `int8`"):
        pack(gradient, "int4")
    with pytest.raises(InputError, match="a flat buffer without gaps"):
        pack(torch.randn(4, 5), "int8")
    with pytest.raises(InputError, match=r"error must be float32 \[10\]"):
        pack(gradient, "int8", torch.zeros(9))
    with pytest.raises(
        InputError, match=r"out must be uint8 \[32\] without gaps, at a multiple of 16 bytes"
    ):
        pack(gradient, "int8", out=torch.zeros(33, dtype=torch.uint8)[1:])
    with pytest.raises(InputError, match=r"packed must be uint8 \[ranks, 32\]"):
        accumulate_(gradient, torch.zeros(31, dtype=torch.uint8), "int8")


@pytest.mark.gpu
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("dtype", list(ELEMENTS))
@pytest.mark.parametrize("size", [1, 257, 10**6 + 3])
def test_the_kernels_on_the_device_give_the_bytes_of_the_reference(wire, dtype, size, cuda_kernels):
    gradient, error = draw.values(size, dtype, 1, -3.0), draw.values(size, torch.float32, 2, -8.0)
    on_device = error.to(cuda_kernels)
    packed = pack(gradient.to(cuda_kernels), wire, on_device).cpu()
    assert torch.equal(
        meaning(packed, size, wire), meaning(pack(gradient, wire, error), size, wire)
    )
    torch.testing.assert_close(on_device.cpu(), error, rtol=1e-6, atol=1e-9)
    sums = [torch.ones(size, dtype=dtype) for _ in range(2)]
    parts = torch.stack([packed, packed])
    ours = sums[0].to(cuda_kernels)
    accumulate_(ours, parts.to(cuda_kernels), wire, factor=0.5)
    reference_accumulate(sums[1], parts, wire, 0.5, True)
    torch.testing.assert_close(ours.cpu(), sums[1], rtol=2 * draw.UNIT_ROUNDOFF[dtype], atol=1e-6)


def test_memory_that_does_not_fit_is_refused_by_the_cpp_itself():
    """The operators below the checks in Python: no caller's mistake may touch other memory."""
    assert cpu_library.library(CPU_SOURCE) is not None
    size = 300
    each = packed_bytes(size, "int8")
    gradient, out = torch.ones(size), torch.zeros(each, dtype=torch.uint8)
    pack_op, accumulate_op = (
        torch.ops.gallery.pack_gradient_,
        torch.ops.gallery.accumulate_gradient_,
    )
    short = torch.zeros(each, dtype=torch.uint8)
    short.untyped_storage().resize_(each - 1)
    gone = torch.ones(size)
    gone.untyped_storage().resize_(0)
    for arguments, message in (
        (
            (gradient, None, "int8", out[:-16]),
            r"pack does not take out, torch.uint8 \(304,\).* shape does not fit",
        ),
        ((gradient, None, "int8", short), "less memory than its shape asks for"),
        ((gone, None, "int8", out), r"gradient, torch.float32 \(300,\).* it has no memory"),
        (
            (gradient, torch.ones(size, dtype=torch.float64), "int8", out),
            "error, torch.float64 .* another dtype",
        ),
        ((gradient, torch.ones(size - 1), "int8", out), "error.* shape does not fit"),
        ((gradient, gradient, "int8", out), "it shares memory with another tensor"),
        ((gradient, torch.ones(1).expand(size), "int8", out), "elements that share memory"),
        (
            (
                torch.ones(2, size)[:, ::2][0],
                None,
                "int8",
                torch.zeros(packed_bytes(150, "int8"), dtype=torch.uint8),
            ),
            "gaps",
        ),
    ):
        with pytest.raises(InputError, match=message):
            pack_op(*arguments)
    assert not out.any() and bool((gradient == 1).all())
    parts = torch.zeros(2, each, dtype=torch.uint8)
    few = torch.zeros(each + 7, dtype=torch.uint8).as_strided((1, each), (each, 1))
    few.untyped_storage().resize_(each - 1)
    for arguments, message in (
        ((gradient, parts[:, :-16], "int8", 1.0, True), "packed.* shape does not fit"),
        ((gradient, parts[0], "int8", 1.0, True), "packed.* shape does not fit"),
        ((gradient, parts.float(), "int8", 1.0, True), "packed.* another dtype"),
        ((gradient, few, "int8", 1.0, True), "less memory"),
        ((gradient, gradient.view(torch.uint8)[None, :each], "int8", 1.0, True), "shares memory"),
        ((gone, parts, "int8", 1.0, True), "it has no memory"),
    ):
        with pytest.raises(InputError, match=message):
            accumulate_op(*arguments)
    assert bool((gradient == 1).all())
    # One part, read by all ranks.
    accumulate_op(gradient, parts[:1].expand(3, each), "int8", 1.0, True)
