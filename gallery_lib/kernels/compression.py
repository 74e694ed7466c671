"""Gradients made small for the wire, as int8 with a scale for every 256 elements or as bf16, with error feedback.

`pack(gradient, wire, error)` gives the bytes to be sent; `accumulate_(sum, packed, wire)` adds up what came from every rank,
in the order of ranks, so that all get the same bits. What packing loses stays in `error`, an fp32 tensor like the gradient,
and goes along the next time. An infinity or NaN arrives as NaN in its whole group of 256 (int8) or as it is (bf16), so an
overflow is still seen in the sum; `error` then keeps its value there. It is in the gradient's own unit: where gradients are
scaled by a loss scale that changes, `error` has to be multiplied by the same. Buffers are flat, of any size; nothing is
waited for.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.kernels import calls, fallback, launch
from gallery_lib.kernels.gradient_statistics import ELEMENTS
from gallery_lib.kernels.launch import THREADS, Launch

SOURCE = "compression.cu"
GROUP = 256
"""Elements that share a scale in int8."""
WIRES = ("int8", "bf16")
PIECE = 256 * GROUP
"""Elements that are worked on at a time on the CPU: what is made on the way, some ten times that in fp32, stays in a core's cache."""
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


def _rounded_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def scale_bytes(size: int) -> int:
    """Of the scales that stand before the codes of `size` elements, filled up to 16."""
    return _rounded_up(-(-size // GROUP) * 4, _ALIGNMENT)


def packed_bytes(size: int, wire: str) -> int:
    """What `size` elements take on the wire. int8: scales, then codes; bf16: the values. What fills them up to 16 may be anything."""
    return scale_bytes(size) + _rounded_up(size, _ALIGNMENT) if wire == "int8" else _rounded_up(2 * size, _ALIGNMENT)


def _blocks(size: int) -> int:
    return -(-size // (THREADS * _EIGHT))


def pack_launch(gradient: Tensor, error: Tensor | None, wire: str, packed: Tensor) -> Launch:
    """For contiguous tensors; `packed` holds `packed_bytes` and starts at a multiple of 16."""
    size, start = gradient.numel(), packed.data_ptr()
    codes = start + (scale_bytes(size) if wire == "int8" else 0)
    arguments = _PackArguments(gradient.data_ptr(), None if error is None else error.data_ptr(), size, start, codes)
    return Launch(SOURCE, f"pack_{wire}", (("ELEMENT", ELEMENTS[gradient.dtype]),), _blocks(size), arguments)


def accumulate_launch(sum: Tensor, packed: Tensor, wire: str, factor: float, add: bool) -> Launch:
    """For contiguous tensors; `packed` is [ranks, packed_bytes]."""
    size, (ranks, each) = sum.numel(), packed.shape
    arguments = _AccumulateArguments(sum.data_ptr(), size, add, factor, ranks, each, packed.data_ptr(), scale_bytes(size))
    return Launch(SOURCE, f"accumulate_{wire}", (("ELEMENT", ELEMENTS[sum.dtype]),), _blocks(size), arguments)


def reference_pack(gradient: Tensor, error: Tensor | None, wire: str) -> Tensor:
    """The same in plain torch; updates `error`."""
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
        packed[scale_bytes(size) : scale_bytes(size) + size].view(torch.int8).copy_(codes.view(-1)[:size])
        keep = (~finite).repeat_interleave(GROUP, output_size=GROUP * len(finite))[:size]
    if error is not None:
        error.copy_(torch.where(keep, error, lost))
    return packed


def _parts(packed: Tensor, size: int, wire: str) -> list[tuple[Tensor, int]]:
    """Views of scales and codes, or of values, in what stands for `size` elements, each with the bytes of GROUP elements."""
    if wire == "bf16":
        return [(packed[..., : 2 * size], 2 * GROUP)]
    scales = packed[..., : 4 * -(-size // GROUP)]
    return [(scales, 4), (packed[..., scale_bytes(size) : scale_bytes(size) + size], GROUP)]


def _pieces(size: int) -> list[tuple[int, int]]:
    """Whole groups, but for the last: begin and end of each."""
    return [(begin, min(begin + PIECE, size)) for begin in range(0, size, PIECE)]


def _pack_on_cpu(gradient: Tensor, error: Tensor | None, wire: str) -> Tensor:
    """reference_pack, a piece at a time, so that what it makes on the way stays in the cache."""
    size = gradient.numel()
    packed = torch.zeros(packed_bytes(size, wire), dtype=torch.uint8)
    for begin, end in _pieces(size):
        piece = reference_pack(gradient[begin:end], None if error is None else error[begin:end], wire)
        for (whole, each), (part, _) in zip(_parts(packed, size, wire), _parts(piece, end - begin, wire), strict=True):
            whole[begin // GROUP * each :][: part.numel()].copy_(part)
    return packed


def _accumulate_on_cpu(sum: Tensor, packed: Tensor, wire: str, factor: float, add: bool) -> None:
    """reference_accumulate, a piece at a time."""
    size = sum.numel()
    for begin, end in _pieces(size):
        piece = packed.new_empty(len(packed), packed_bytes(end - begin, wire))
        for (part, each), (whole, _) in zip(_parts(piece, end - begin, wire), _parts(packed, size, wire), strict=True):
            part.copy_(whole[:, begin // GROUP * each :][:, : part.shape[1]])
        reference_accumulate(sum[begin:end], piece, wire, factor, add)


def reference_accumulate(sum: Tensor, packed: Tensor, wire: str, factor: float, add: bool) -> None:
    """The same in plain torch, in place."""
    size = sum.numel()
    total = torch.zeros(size, dtype=torch.float32, device=sum.device)
    for part in packed:
        if wire == "bf16":
            total += part[: 2 * size].clone().view(torch.bfloat16).float()
        else:
            scales = part[: 4 * -(-size // GROUP)].clone().view(torch.float32).repeat_interleave(GROUP)[:size]
            total += part[scale_bytes(size) : scale_bytes(size) + size].view(torch.int8).float() * scales
    total *= factor
    sum.copy_(total + sum.float() if add else total)


torch.library.define("gallery::pack_gradient_", "(Tensor gradient, Tensor(a!)? error, str wire) -> Tensor")
torch.library.define("gallery::accumulate_gradient_", "(Tensor(a!) sum, Tensor packed, str wire, float factor, bool add) -> ()")


def _check(buffer: Tensor, name: str, wire: str) -> None:
    if wire not in WIRES:
        raise InputError(f"there is no wire format {wire!r}; there are {', '.join(WIRES)}.{did_you_mean(wire, WIRES)}")
    if buffer.dim() != 1 or buffer.dtype not in ELEMENTS or not buffer.is_contiguous():
        raise InputError(
            f"{name} must be a flat buffer without gaps, in fp32, bf16 or fp16; got {buffer.dtype} {tuple(buffer.shape)} "
            f"with strides {buffer.stride()}."
        )


def pack(gradient: Tensor, wire: str, error: Tensor | None = None) -> Tensor:
    """The bytes to be sent, uint8 [packed_bytes(size, wire)]. Updates `error`, fp32 [size], when it is given.

    `gradient`: [size] in fp32, bf16 or fp16. `wire`: `int8` or `bf16`. Raises InputError for anything else.
    """
    _check(gradient, "gradient", wire)
    if error is not None and (error.dtype is not torch.float32 or error.shape != gradient.shape or not error.is_contiguous()):
        raise InputError(f"error must be float32 [{gradient.numel()}] without gaps; got {error.dtype} {tuple(error.shape)}.")
    packed = torch.ops.gallery.pack_gradient_(gradient, error, wire)
    if error is not None:
        torch.autograd.graph.increment_version(error)
    return packed


def accumulate_(sum: Tensor, packed: Tensor, wire: str, *, factor: float = 1.0, add: bool = True) -> None:
    """sum = (sum if `add`) + factor · (what each rank's `packed` stands for), in place, rounded once.

    `packed`: uint8 [ranks, packed_bytes(size, wire)], or of one rank [packed_bytes]. Raises InputError for anything else.
    """
    _check(sum, "sum", wire)
    parts = packed[None] if packed.dim() == 1 else packed
    each = packed_bytes(sum.numel(), wire)
    if parts.dtype is not torch.uint8 or parts.dim() != 2 or parts.shape[1] != each or not parts.is_contiguous():
        raise InputError(f"packed must be uint8 [ranks, {each}] for {sum.numel()} elements; got {packed.dtype} {tuple(packed.shape)}.")
    torch.ops.gallery.accumulate_gradient_(sum, parts, wire, float(factor), add)
    torch.autograd.graph.increment_version(sum)


def _kernel_runs(buffer: Tensor, *_: Any) -> bool:
    return fallback.kernels_run(buffer.device)


def _pack_on_cuda(gradient: Tensor, error: Tensor | None, wire: str) -> Tensor:
    if not _kernel_runs(gradient):
        return reference_pack(gradient, error, wire)
    packed = torch.empty(packed_bytes(gradient.numel(), wire), dtype=torch.uint8, device=gradient.device)
    launch.run(pack_launch(gradient, error, wire, packed), gradient.device)
    return packed


def _accumulate_on_cuda(sum: Tensor, packed: Tensor, wire: str, factor: float, add: bool) -> None:
    if not _kernel_runs(sum):
        return reference_accumulate(sum, packed, wire, factor, add)
    if packed.data_ptr() % _ALIGNMENT:
        packed = packed.clone()
    return launch.run(accumulate_launch(sum, packed, wire, factor, add), sum.device)


for _name, _on_cpu, _on_cuda in (
    ("pack_gradient_", _pack_on_cpu, _pack_on_cuda),
    ("accumulate_gradient_", _accumulate_on_cpu, _accumulate_on_cuda),
):
    torch.library.impl(f"gallery::{_name}", "cpu", calls.counted(_name, _on_cpu))
    torch.library.impl(f"gallery::{_name}", "cuda", calls.counted(_name, _on_cuda, _kernel_runs))


@torch.library.register_fake("gallery::pack_gradient_")
def _pack_fake(gradient: Tensor, error: Tensor | None, wire: str) -> Tensor:
    return gradient.new_empty(packed_bytes(gradient.numel(), wire), dtype=torch.uint8)


@torch.library.register_fake("gallery::accumulate_gradient_")
def _accumulate_fake(sum: Tensor, packed: Tensor, wire: str, factor: float, add: bool) -> None:
    return None
