"""Compression of gradients for communication, as int8 with error feedback.

Every 256 elements share a scale. `pack(gradient, error)` returns the bytes to be sent.
`accumulate_(sum, packed)` adds up what came from every rank, in the order of ranks, so
that all ranks get the same bits.

What packing loses stays in `error`, an fp32 tensor of the gradient's shape, and is added to the
next gradient. An infinity or NaN arrives as NaN in its whole group of 256. An overflow is therefore
still seen in the sum. `error` keeps its value at such elements.

`error` is in the gradient's own unit. Where a changing loss scale scales the gradients, `error` has
to be multiplied by the same factor. Buffers are flat, of any size. Nothing waits for the device.

On the wire are scales, one for every GROUP elements, then codes. Each part is padded to a multiple
of 16 bytes, and the padding may hold anything. C++ (`cpu/compression.cpp`) takes fp32 gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gallery_lib.kernels.runtime import cpp
from gallery_lib.kernels.runtime.launch import (
    ELEMENTS,
    FLOAT,
    INT,
    LONG,
    POINTER,
    THREADS,
    enqueue,
    structure,
)
from gallery_lib.kernels.runtime.operators import kernel_device, register

GROUP = 256
"""Elements that share a scale."""
ALIGNMENT = 16
"""Bytes; packed gradients start at a multiple of them."""


def _rounded_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def scale_bytes(size: int) -> int:
    """Return how many bytes the scales of `size` elements take in front of their codes."""
    return _rounded_up(-(-size // GROUP) * 4, ALIGNMENT)


def packed_bytes(size: int) -> int:
    """Return how many bytes `size` elements take on the wire."""
    return scale_bytes(size) + _rounded_up(size, ALIGNMENT)


def pack(gradient: Tensor, error: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """Return the bytes to be sent, uint8 [packed_bytes(size)], and update `error`.

    Args:
        gradient: [size] in fp32, bf16 or fp16, without gaps.
        error: fp32 [size], what earlier packing lost; updated in place. None for no error feedback.
        out: uint8 [packed_bytes(size)] that receives the bytes; a new tensor when left out.
    """
    assert _is_buffer(gradient)
    size = packed_bytes(gradient.numel())
    if out is None:
        out = torch.empty(size, dtype=torch.uint8, device=gradient.device)
    assert out.dtype is torch.uint8 and out.shape == (size,) and out.is_contiguous()
    assert out.data_ptr() % ALIGNMENT == 0
    if error is not None:
        assert error.dtype is torch.float32 and error.shape == gradient.shape
        assert error.is_contiguous()
    torch.ops.gallery.pack_gradient_(gradient, error, out)
    torch.autograd.graph.increment_version([out] if error is None else [out, error])
    return out


def accumulate_(sum: Tensor, packed: Tensor, *, factor: float = 1.0, add: bool = True) -> None:
    """Compute sum = (sum if `add`) + factor · (sum of what `packed` stands for), in place.

    The result is rounded once.

    Args:
        sum: [size] in fp32, bf16 or fp16, without gaps.
        packed: uint8 [ranks, packed_bytes(size)], whose rows may have gaps between them, or
            [packed_bytes] of one rank.
        factor: factor of the ranks' sum.
        add: whether `sum` keeps its value as one of the terms.
    """
    parts = packed[None] if packed.dim() == 1 else packed
    assert _is_buffer(sum) and parts.dtype is torch.uint8
    assert parts.shape[1:] == (packed_bytes(sum.numel()),)
    assert parts.stride(1) == 1 or not parts.numel()
    torch.ops.gallery.accumulate_gradient_(sum, parts, float(factor), add)
    torch.autograd.graph.increment_version(sum)


def _is_buffer(tensor: Tensor) -> bool:
    return tensor.dim() == 1 and tensor.dtype in ELEMENTS and tensor.is_contiguous()


CPP = cpp.Functions("compression.cpp", flag=LONG, factor=FLOAT)
_Pack = structure(gradient=POINTER, error=POINTER, size=LONG, scales=POINTER, packed=POINTER)
_Accumulate = structure(
    **{"sum": POINTER, "size": LONG, "add": INT, "factor": FLOAT, "ranks": INT},
    **{"bytes_of_rank": LONG, "packed": POINTER, "codes_from": LONG},
)


def _blocks(size: int) -> int:
    return -(-size // (THREADS * 8))  # a thread has eight elements


def _takes_cpp(buffer: Tensor, *_: object) -> bool:
    return buffer.dtype is torch.float32 and CPP.available()


def pack_reference(gradient: Tensor, error: Tensor | None, out: Tensor) -> None:
    """Pack the gradient into `out` in plain torch; update `error`."""
    values = gradient.float() if error is None else gradient.float() + error
    size, packed = values.numel(), torch.zeros_like(out)
    groups = torch.nn.functional.pad(values, (0, -size % GROUP)).view(-1, GROUP)
    finite = groups.isfinite().all(1)
    scales = (groups.abs().amax(1) / 127).where(finite, torch.nan)[:, None]
    codes = torch.where(scales > 0, (groups / scales).round().clamp(-127, 127), 0.0)
    packed[: 4 * len(scales)].view(torch.float32).copy_(scales[:, 0])
    packed[scale_bytes(size) :][:size].view(torch.int8).copy_(codes.view(-1)[:size])
    if error is not None:
        lost = (groups - codes * scales).view(-1)[:size]
        keep = (~finite).repeat_interleave(GROUP, output_size=GROUP * len(finite))[:size]
        error.copy_(torch.where(keep, error, lost))
    out.copy_(packed)


def _pack_kernel(gradient: Tensor, error: Tensor | None, out: Tensor) -> None:
    size, start = gradient.numel(), out.data_ptr()
    values = (gradient, error, size, start, start + scale_bytes(size))
    enqueue("compression.cu", "pack_int8", gradient, _blocks(size), _Pack, *values)


def _pack_cpp(gradient: Tensor, error: Tensor | None, out: Tensor) -> None:
    row = (gradient, out) if error is None else (gradient, out, error)
    CPP.call("pack_int8", ("gradient", "out", "error"), [row], error is not None, 0.0)


register(
    "pack_gradient_",
    "(Tensor gradient, Tensor(a!)? error, Tensor(b!) out) -> ()",
    reference=pack_reference,
    kernel=_pack_kernel,
    device=kernel_device,
    fake=lambda *_: None,
    cpp=_pack_cpp,
    takes_cpp=_takes_cpp,
)


def accumulate_reference(sum: Tensor, packed: Tensor, factor: float, add: bool) -> None:
    """Add packed gradients up into `sum` in place, in plain torch."""
    size = sum.numel()
    total = torch.zeros(size, dtype=torch.float32, device=sum.device)
    for part in packed:
        scales = part[: 4 * -(-size // GROUP)].clone().view(torch.float32)
        codes = part[scale_bytes(size) : scale_bytes(size) + size].view(torch.int8)
        total += codes.float() * scales.repeat_interleave(GROUP)[:size]
    total *= factor
    sum.copy_(total + sum.float() if add else total)


def _accumulate_kernel(sum: Tensor, packed: Tensor, factor: float, add: bool) -> None:
    if packed.data_ptr() % ALIGNMENT or packed.stride(0) % ALIGNMENT:
        packed = packed.clone(memory_format=torch.contiguous_format)
    size, parts = sum.numel(), (len(packed), packed.stride(0), packed)
    values = (sum, size, add, factor, *parts, scale_bytes(size))
    enqueue("compression.cu", "accumulate_int8", sum, _blocks(size), _Accumulate, *values)


def _accumulate_cpp(sum: Tensor, packed: Tensor, factor: float, add: bool) -> None:
    CPP.call("accumulate_int8", ("sum", "packed"), [(sum, packed)], add, factor)


register(
    "accumulate_gradient_",
    "(Tensor(a!) sum, Tensor packed, float factor, bool add) -> ()",
    reference=accumulate_reference,
    kernel=_accumulate_kernel,
    device=kernel_device,
    fake=lambda *_: None,
    cpp=_accumulate_cpp,
    takes_cpp=_takes_cpp,
)
