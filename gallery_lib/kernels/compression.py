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

import torch
from torch import Tensor

from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.kernels import compression_cpp
from gallery_lib.kernels.compression_launch import accumulate_launch, pack_launch
from gallery_lib.kernels.compression_layout import ALIGNMENT, WIRES, packed_bytes
from gallery_lib.kernels.compression_reference import reference_accumulate, reference_pack
from gallery_lib.kernels.runtime import launch
from gallery_lib.kernels.runtime.launch import ELEMENTS
from gallery_lib.kernels.runtime.operators import Cpp, kernel_device, register


def pack(
    gradient: Tensor, wire: str, error: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """Return the bytes to be sent, uint8 [packed_bytes(size, wire)], and update `error`.

    Args:
        gradient: [size] in fp32, bf16 or fp16.
        wire: `int8` or `bf16`.
        error: fp32 [size], what earlier packing lost; updated in place. None for no error feedback.
        out: uint8 [packed_bytes(size, wire)] that receives the bytes; a new tensor when left out.

    Raises:
        InputError: for anything else than the following.
    """
    _check(gradient, "gradient", wire)
    if error is not None and (
        error.dtype is not torch.float32
        or error.shape != gradient.shape
        or not error.is_contiguous()
    ):
        raise InputError(
            f"error must be float32 [{gradient.numel()}] without gaps; got {error.dtype} "
            f"{tuple(error.shape)}.",
            parameter="error",
        )
    size = packed_bytes(gradient.numel(), wire)
    if out is None:
        out = torch.empty(size, dtype=torch.uint8, device=gradient.device)
    elif (
        out.dtype is not torch.uint8
        or out.shape != (size,)
        or not out.is_contiguous()
        or out.data_ptr() % ALIGNMENT
    ):
        raise InputError(
            f"out must be uint8 [{size}] without gaps, at a multiple of {ALIGNMENT} bytes; got "
            f"{out.dtype} {tuple(out.shape)}.",
            parameter="out",
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

    The result is rounded once.

    Args:
        sum: [size] in fp32, bf16 or fp16.
        packed: uint8 [ranks, packed_bytes(size, wire)], whose rows may have gaps between them, or
            [packed_bytes] of one rank.
        wire: `int8` or `bf16`.
        factor: factor of the ranks' sum.
        add: whether `sum` keeps its value as one of the terms.

    Raises:
        InputError: for anything else than the following.
    """
    _check(sum, "sum", wire)
    parts = packed[None] if packed.dim() == 1 else packed
    size = packed_bytes(sum.numel(), wire)
    if (
        parts.dtype is not torch.uint8
        or parts.dim() != 2
        or parts.shape[1] != size
        or (size and parts.stride(1) != 1)
    ):
        raise InputError(
            f"packed must be uint8 [ranks, {size}] for {sum.numel()} elements; got {packed.dtype} "
            f"{tuple(packed.shape)}.",
            parameter="packed",
        )
    torch.ops.gallery.accumulate_gradient_(sum, parts, wire, float(factor), add)
    torch.autograd.graph.increment_version(sum)


def _check(buffer: Tensor, name: str, wire: str) -> None:
    if wire not in WIRES:
        raise InputError(
            f"there is no wire format {wire!r}; there are "
            f"{', '.join(WIRES)}.{did_you_mean(wire, WIRES)}",
            parameter="wire",
        )
    if buffer.dim() != 1 or buffer.dtype not in ELEMENTS or not buffer.is_contiguous():
        raise InputError(
            f"{name} must be a flat buffer without gaps, in fp32, bf16 or fp16; got "
            f"{buffer.dtype} {tuple(buffer.shape)} with strides {buffer.stride()}.",
            parameter=name,
        )


def _pack_reference(gradient: Tensor, error: Tensor | None, wire: str, out: Tensor) -> None:
    out.copy_(reference_pack(gradient, error, wire))


def _pack_kernel(gradient: Tensor, error: Tensor | None, wire: str, out: Tensor) -> None:
    launch.run(pack_launch(gradient, error, wire, out), gradient.device)


def _pack_fake(gradient: Tensor, error: Tensor | None, wire: str, out: Tensor) -> None:
    return None


def _accumulate_kernel(sum: Tensor, packed: Tensor, wire: str, factor: float, add: bool) -> None:
    if packed.data_ptr() % ALIGNMENT or packed.stride(0) % ALIGNMENT:
        packed = packed.clone(memory_format=torch.contiguous_format)
    launch.run(accumulate_launch(sum, packed, wire, factor, add), sum.device)


def _accumulate_fake(sum: Tensor, packed: Tensor, wire: str, factor: float, add: bool) -> None:
    return None


register(
    "pack_gradient_",
    "(Tensor gradient, Tensor(a!)? error, str wire, Tensor(b!) out) -> ()",
    reference=_pack_reference,
    kernel=_pack_kernel,
    device=kernel_device,
    fake=_pack_fake,
    cpp=Cpp(compression_cpp.takes_pack, compression_cpp.pack),
)
register(
    "accumulate_gradient_",
    "(Tensor(a!) sum, Tensor packed, str wire, float factor, bool add) -> ()",
    reference=reference_accumulate,
    kernel=_accumulate_kernel,
    device=kernel_device,
    fake=_accumulate_fake,
    cpp=Cpp(compression_cpp.takes_accumulate, compression_cpp.accumulate),
)
