"""The operators of compressed gradients: C++ as plain torch, refusals, and the device."""

from __future__ import annotations

import math

import pytest
import torch
from cuda_on_host import draw
from cuda_on_host.memory import Guarded, poisoned
from kernels.compression_on_host import FILLING, meaning
from refusal import refused

from gallery_lib.kernels import compression_cpp
from gallery_lib.kernels.compression import accumulate_, pack
from gallery_lib.kernels.compression_layout import GROUP, WIRES, packed_bytes, scale_bytes
from gallery_lib.kernels.compression_reference import reference_accumulate, reference_pack
from gallery_lib.kernels.runtime import cpu_library
from gallery_lib.kernels.runtime.fallback import KernelsNotUsed
from gallery_lib.kernels.runtime.launch import ELEMENTS


def codes_and_scales(packed: torch.Tensor, size: int) -> list[torch.Tensor]:
    """Return the bytes of an int8 buffer without its padding."""
    return [packed[: 4 * -(-size // GROUP)], packed[scale_bytes(size) :][:size]]


@pytest.mark.parametrize("size", [0, 1, 255, GROUP, 5 * GROUP + 7, 3000])
@pytest.mark.parametrize("with_error", [False, True])
@pytest.mark.parametrize("exponent", [-147.0, -3.0, 100.0])
def test_the_cpp_gives_the_bits_of_plain_torch_and_stays_within_its_buffers(
    size, with_error, exponent
):
    assert cpu_library.library(compression_cpp.SOURCE) is not None
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
    with refused("wire", "'int4'", "`int8`"):
        pack(gradient, "int4")
    with refused("gradient", "(4, 5)"):
        pack(torch.randn(4, 5), "int8")
    with refused("error", "[10]", "(9,)"):
        pack(gradient, "int8", torch.zeros(9))
    with refused("out", "uint8 [32]", "multiple of 16 bytes"):
        pack(gradient, "int8", out=torch.zeros(33, dtype=torch.uint8)[1:])
    with refused("packed", "[ranks, 32]", "(31,)"):
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
    # What is left of a value is its difference to code × scale. The kernel subtracts the exact
    # product, the reference the rounded one: they differ by up to one rounding of the product.
    rounding = 2.0**-24 * (gradient.float() + error).abs().max().item()
    torch.testing.assert_close(on_device.cpu(), error, rtol=1e-6, atol=rounding)
    sums = [torch.ones(size, dtype=dtype) for _ in range(2)]
    parts = torch.stack([packed, packed])
    ours = sums[0].to(cuda_kernels)
    accumulate_(ours, parts.to(cuda_kernels), wire, factor=0.5)
    reference_accumulate(sums[1], parts, wire, 0.5, True)
    torch.testing.assert_close(ours.cpu(), sums[1], rtol=2 * draw.UNIT_ROUNDOFF[dtype], atol=1e-6)


def test_memory_that_does_not_fit_is_refused_by_the_cpp_itself():
    """The operators below the checks in Python: no caller's mistake may touch other memory."""
    assert cpu_library.library(compression_cpp.SOURCE) is not None
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
    for arguments, name, values in (
        ((gradient, None, "int8", out[:-16]), "out", ["torch.uint8 (304,)", "shape"]),
        ((gradient, None, "int8", short), "out", ["less memory"]),
        ((gone, None, "int8", out), "gradient", ["torch.float32 (300,)", "no memory"]),
        (
            (gradient, torch.ones(size, dtype=torch.float64), "int8", out),
            "error",
            ["torch.float64", "another dtype"],
        ),
        ((gradient, torch.ones(size - 1), "int8", out), "error", ["(299,)", "shape"]),
        ((gradient, gradient, "int8", out), "error", ["shares memory with another"]),
        ((gradient, torch.ones(1).expand(size), "int8", out), "error", ["elements that share"]),
        (
            (
                torch.ones(2, size)[:, ::2][0],
                None,
                "int8",
                torch.zeros(packed_bytes(150, "int8"), dtype=torch.uint8),
            ),
            "gradient",
            ["gaps"],
        ),
    ):
        with refused(name, *values):
            pack_op(*arguments)
    assert not out.any() and bool((gradient == 1).all())
    parts = torch.zeros(2, each, dtype=torch.uint8)
    few = torch.zeros(each + 7, dtype=torch.uint8).as_strided((1, each), (each, 1))
    few.untyped_storage().resize_(each - 1)
    for arguments, name, values in (
        ((gradient, parts[:, :-16], "int8", 1.0, True), "packed", ["shape"]),
        ((gradient, parts[0], "int8", 1.0, True), "packed", ["shape"]),
        ((gradient, parts.float(), "int8", 1.0, True), "packed", ["another dtype"]),
        ((gradient, few, "int8", 1.0, True), "packed", ["less memory"]),
        (
            (gradient, gradient.view(torch.uint8)[None, :each], "int8", 1.0, True),
            "sum",
            ["shares memory"],
        ),
        ((gone, parts, "int8", 1.0, True), "sum", ["no memory"]),
    ):
        with refused(name, *values):
            accumulate_op(*arguments)
    assert bool((gradient == 1).all())
    # One part, read by all ranks.
    accumulate_op(gradient, parts[:1].expand(3, each), "int8", 1.0, True)
