"""Compression of gradients for communication, as int8 or bf16, with error feedback.

In int8 every 256 elements share a scale. `pack(gradient, wire, error)` returns the bytes to be
sent. `accumulate_(sum, packed, wire)` adds up what came from every rank, in the order of ranks, so
that all ranks get the same bits.

What packing loses stays in `error`, an fp32 tensor of the gradient's shape, and is added to the
next gradient. An infinity or NaN arrives as NaN in its whole group of 256 (int8), or as it is
(bf16). An overflow is therefore still seen in the sum. `error` keeps its value at such elements.

`error` is in the gradient's own unit. Where a changing loss scale scales the gradients, `error` has
to be multiplied by the same factor. Buffers are flat, of any size. Nothing waits for the device.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.kernels.gradient_statistics import ELEMENTS
from gallery_lib.kernels.runtime import call_counts, cpu_library, cpu_tensors, fallback, launch
from gallery_lib.kernels.runtime.launch import THREADS, Launch

SOURCE = "compression.cu"
CPU_SOURCE = "compression.cpp"
"""C++ for int8 of fp32 buffers on the CPU."""
GROUP = 256
"""Elements that share a scale in int8."""
WIRES = ("int8", "bf16")
_EIGHT = 8
_ALIGNMENT = 16


class _PackArguments(ctypes.Structure):
    _fields_ = (
        ("gradient", ctypes.c_void_p),
        ("error", ctypes.c_void_p),
        ("size", ctypes.c_longlong),
        ("scales", ctypes.c_void_p),
        ("packed", ctypes.c_void_p),
    )


class _AccumulateArguments(ctypes.Structure):
    _fields_ = (
        ("sum", ctypes.c_void_p),
        ("size", ctypes.c_longlong),
        ("add", ctypes.c_int),
        ("factor", ctypes.c_float),
        ("ranks", ctypes.c_int),
        ("bytes_of_rank", ctypes.c_longlong),
        ("packed", ctypes.c_void_p),
        ("codes_from", ctypes.c_longlong),
    )


class _CpuPackArguments(ctypes.Structure):
    _fields_ = (
        ("descriptors", ctypes.c_void_p),
        ("length", ctypes.c_longlong),
        ("keep", ctypes.c_longlong),
    )


class _CpuAccumulateArguments(ctypes.Structure):
    _fields_ = (
        ("descriptors", ctypes.c_void_p),
        ("length", ctypes.c_longlong),
        ("add", ctypes.c_longlong),
        ("factor", ctypes.c_float),
    )


def _rounded_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def scale_bytes(size: int) -> int:
    """Return how many bytes the scales of `size` elements take in front of their codes.

    The scales are padded to a multiple of 16 bytes.
    """
    return _rounded_up(-(-size // GROUP) * 4, _ALIGNMENT)


def packed_bytes(size: int, wire: str) -> int:
    """Return how many bytes `size` elements take on the wire.

    int8: scales, then codes. bf16: the values. The padding to a multiple of 16 bytes may hold
    anything.
    """
    return (
        scale_bytes(size) + _rounded_up(size, _ALIGNMENT)
        if wire == "int8"
        else _rounded_up(2 * size, _ALIGNMENT)
    )


def _blocks(size: int) -> int:
    return -(-size // (THREADS * _EIGHT))


def pack_launch(gradient: Tensor, error: Tensor | None, wire: str, packed: Tensor) -> Launch:
    """Return the launch that packs contiguous tensors.

    `packed` holds `packed_bytes` and starts at a multiple of 16 bytes.
    """
    size, start = gradient.numel(), packed.data_ptr()
    codes = start + (scale_bytes(size) if wire == "int8" else 0)
    kept = None if error is None else error.data_ptr()
    arguments = _PackArguments(gradient.data_ptr(), kept, size, start, codes)
    defines = (("ELEMENT", ELEMENTS[gradient.dtype]),)
    return Launch(SOURCE, f"pack_{wire}", defines, _blocks(size), arguments)


def accumulate_launch(sum: Tensor, packed: Tensor, wire: str, factor: float, add: bool) -> Launch:
    """Return the launch that adds packed gradients up into a contiguous `sum`.

    `packed` is [ranks, packed_bytes], its rows at multiples of 16 bytes.
    """
    size, ranks, apart = sum.numel(), len(packed), packed.stride(0)
    codes_from, start = scale_bytes(size), packed.data_ptr()
    arguments = _AccumulateArguments(
        sum.data_ptr(), size, add, factor, ranks, apart, start, codes_from
    )
    defines = (("ELEMENT", ELEMENTS[sum.dtype]),)
    return Launch(SOURCE, f"accumulate_{wire}", defines, _blocks(size), arguments)


def reference_pack(gradient: Tensor, error: Tensor | None, wire: str) -> Tensor:
    """Return the packed gradient, computed in plain torch; update `error`."""
    values = gradient.float() if error is None else gradient.float() + error
    size = values.numel()
    packed = torch.zeros(packed_bytes(size, wire), dtype=torch.uint8, device=values.device)
    if wire == "bf16":
        rounded = values.bfloat16()
        lost = values - rounded.float()
        packed[: 2 * size].view(torch.bfloat16).copy_(rounded)
        keep = ~lost.isfinite()
    else:
        groups = torch.nn.functional.pad(values, (0, -size % GROUP)).view(-1, GROUP)
        finite = groups.isfinite().all(1)
        scales = (groups.abs().amax(1) / 127).where(finite, torch.nan)[:, None]
        codes = torch.where(scales > 0, (groups / scales).round().clamp(-127, 127), 0.0)
        lost = (groups - codes * scales).view(-1)[:size]
        packed[: 4 * len(scales)].view(torch.float32).copy_(scales[:, 0])
        packed[scale_bytes(size) : scale_bytes(size) + size].view(torch.int8).copy_(
            codes.view(-1)[:size]
        )
        keep = (~finite).repeat_interleave(GROUP, output_size=GROUP * len(finite))[:size]
    if error is not None:
        error.copy_(torch.where(keep, error, lost))
    return packed


def reference_accumulate(sum: Tensor, packed: Tensor, wire: str, factor: float, add: bool) -> None:
    """Add packed gradients up into `sum` in place, in plain torch."""
    size = sum.numel()
    total = torch.zeros(size, dtype=torch.float32, device=sum.device)
    for part in packed:
        if wire == "bf16":
            total += part[: 2 * size].clone().view(torch.bfloat16).float()
        else:
            scales = (
                part[: 4 * -(-size // GROUP)]
                .clone()
                .view(torch.float32)
                .repeat_interleave(GROUP)[:size]
            )
            total += (
                part[scale_bytes(size) : scale_bytes(size) + size].view(torch.int8).float() * scales
            )
    total *= factor
    sum.copy_(total + sum.float() if add else total)


torch.library.define(
    "gallery::pack_gradient_",
    "(Tensor gradient, Tensor(a!)? error, str wire, Tensor(b!) out) -> ()",
)
torch.library.define(
    "gallery::accumulate_gradient_",
    "(Tensor(a!) sum, Tensor packed, str wire, float factor, bool add) -> ()",
)


def _check(buffer: Tensor, name: str, wire: str) -> None:
    if wire not in WIRES:
        raise InputError(
            f"there is no wire format {wire!r}; there are "
            f"{', '.join(WIRES)}.{did_you_mean(wire, WIRES)}"
        )
    if buffer.dim() != 1 or buffer.dtype not in ELEMENTS or not buffer.is_contiguous():
        raise InputError(
            f"{name} must be a flat buffer without gaps, in fp32, bf16 or fp16; got "
            f"{buffer.dtype} {tuple(buffer.shape)} with strides {buffer.stride()}."
        )


def pack(
    gradient: Tensor, wire: str, error: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """Return the bytes to be sent, uint8 [packed_bytes(size, wire)], and update `error`.

    Raises InputError for anything else than the following.

    Args:
        gradient: [size] in fp32, bf16 or fp16.
        wire: `int8` or `bf16`.
        error: fp32 [size], what earlier packing lost; updated in place. None for no error feedback.
        out: uint8 [packed_bytes(size, wire)] that receives the bytes; a new tensor when left out.
    """
    _check(gradient, "gradient", wire)
    if error is not None and (
        error.dtype is not torch.float32
        or error.shape != gradient.shape
        or not error.is_contiguous()
    ):
        raise InputError(
            f"error must be float32 [{gradient.numel()}] without gaps; got {error.dtype} "
            f"{tuple(error.shape)}."
        )
    each = packed_bytes(gradient.numel(), wire)
    if out is None:
        out = torch.empty(each, dtype=torch.uint8, device=gradient.device)
    elif (
        out.dtype is not torch.uint8
        or out.shape != (each,)
        or not out.is_contiguous()
        or out.data_ptr() % _ALIGNMENT
    ):
        raise InputError(
            f"out must be uint8 [{each}] without gaps, at a multiple of {_ALIGNMENT} bytes; got "
            f"{out.dtype} {tuple(out.shape)}."
        )
    torch.ops.gallery.pack_gradient_(gradient, error, wire, out)
    for changed in (error, out):
        if changed is not None:
            torch.autograd.graph.increment_version(changed)
    return out


def accumulate_(
    sum: Tensor, packed: Tensor, wire: str, *, factor: float = 1.0, add: bool = True
) -> None:
    """Compute sum = (sum if `add`) + factor · (sum of what `packed` stands for), in place.

    The result is rounded once. Raises InputError for anything else than the following.

    Args:
        sum: [size] in fp32, bf16 or fp16.
        packed: uint8 [ranks, packed_bytes(size, wire)], whose rows may have gaps between them, or
            [packed_bytes] of one rank.
        wire: `int8` or `bf16`.
        factor: factor of the ranks' sum.
        add: whether `sum` keeps its value as one of the terms.
    """
    _check(sum, "sum", wire)
    parts = packed[None] if packed.dim() == 1 else packed
    each = packed_bytes(sum.numel(), wire)
    if (
        parts.dtype is not torch.uint8
        or parts.dim() != 2
        or parts.shape[1] != each
        or (each and parts.stride(1) != 1)
    ):
        raise InputError(
            f"packed must be uint8 [ranks, {each}] for {sum.numel()} elements; got {packed.dtype} "
            f"{tuple(packed.shape)}."
        )
    torch.ops.gallery.accumulate_gradient_(sum, parts, wire, float(factor), add)
    torch.autograd.graph.increment_version(sum)


def _library(buffer: Tensor, wire: str) -> ctypes.CDLL | None:
    """Return our C++ where it can do the work; None where plain torch has to."""
    return (
        cpu_library.library(CPU_SOURCE)
        if wire == "int8" and buffer.dtype is torch.float32
        else None
    )


def _pack_on_cpu(gradient: Tensor, error: Tensor | None, wire: str, out: Tensor) -> None:
    library = _library(gradient, wire)
    if library is None:
        out.copy_(reference_pack(gradient, error, wire))
        return
    row = (gradient, out) if error is None else (gradient, out, error)
    descriptors = cpu_tensors.described(row)
    arguments = _CpuPackArguments(*descriptors.buffer_info(), error is not None)
    code = cpu_tensors.entry(library, "pack_int8")(ctypes.byref(arguments))
    cpu_tensors.check(code, "pack", [row], ("gradient", "out", "error"))


def _kernel_runs(buffer: Tensor, *_: Any) -> bool:
    return fallback.kernels_run(buffer.device)


def _pack_on_cuda(gradient: Tensor, error: Tensor | None, wire: str, out: Tensor) -> None:
    if not _kernel_runs(gradient):
        out.copy_(reference_pack(gradient, error, wire))
    else:
        launch.run(pack_launch(gradient, error, wire, out), gradient.device)


def _accumulate_on_cpu(sum: Tensor, packed: Tensor, wire: str, factor: float, add: bool) -> None:
    library = _library(sum, wire)
    if library is None:
        return reference_accumulate(sum, packed, wire, factor, add)
    row = (sum, packed)
    descriptors = cpu_tensors.described(row)
    arguments = _CpuAccumulateArguments(*descriptors.buffer_info(), add, factor)
    code = cpu_tensors.entry(library, "accumulate_int8")(ctypes.byref(arguments))
    return cpu_tensors.check(code, "accumulate_", [row], ("sum", "packed"))


def _accumulate_on_cuda(sum: Tensor, packed: Tensor, wire: str, factor: float, add: bool) -> None:
    if not _kernel_runs(sum):
        return reference_accumulate(sum, packed, wire, factor, add)
    if packed.data_ptr() % _ALIGNMENT or packed.stride(0) % _ALIGNMENT:
        packed = packed.clone(memory_format=torch.contiguous_format)
    return launch.run(accumulate_launch(sum, packed, wire, factor, add), sum.device)


def _in_cpp(buffer: Tensor, *others: Any) -> bool:
    wire = next(other for other in others if isinstance(other, str))
    return _library(buffer, wire) is not None


for _name, _on_cpu, _on_cuda in (
    ("pack_gradient_", _pack_on_cpu, _pack_on_cuda),
    ("accumulate_gradient_", _accumulate_on_cpu, _accumulate_on_cuda),
):
    torch.library.impl(f"gallery::{_name}", "cpu", call_counts.counted(_name, _on_cpu, _in_cpp))
    torch.library.impl(
        f"gallery::{_name}", "cuda", call_counts.counted(_name, _on_cuda, _kernel_runs)
    )


@torch.library.register_fake("gallery::pack_gradient_")
def _pack_fake(gradient: Tensor, error: Tensor | None, wire: str, out: Tensor) -> None:
    return None


@torch.library.register_fake("gallery::accumulate_gradient_")
def _accumulate_fake(sum: Tensor, packed: Tensor, wire: str, factor: float, add: bool) -> None:
    return None
