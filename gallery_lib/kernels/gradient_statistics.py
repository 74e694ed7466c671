"""The L2 norm of all gradients and whether any is not finite: `gallery::gradient_statistics`.

One read of the gradients gives both. The norm is that of the concatenated gradients. Both results
stay on the device as fp32 scalars, the form in which torch's fused optimizers and ours take
`found_inf`. Nothing waits for the device. Squares neither overflow nor underflow, whatever the
gradients' sizes. So `found_inf` says exactly whether an element is infinite or NaN, and the norm is
finite whenever fp32 can represent it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gallery_lib.errors import InputError
from gallery_lib.kernels.runtime import launch
from gallery_lib.kernels.runtime.launch import ELEMENTS, Launch
from gallery_lib.kernels.runtime.operators import register
from gallery_lib.kernels.runtime.tensor_lists import is_dense, packed, tensor_list

SOURCE = "gradient_statistics.cu"


class _SquaresArguments(ctypes.Structure):
    _fields_ = (("tensors", tensor_list(1)), ("partial", ctypes.c_void_p))


class _FinishArguments(ctypes.Structure):
    _fields_ = (
        ("partial", ctypes.c_void_p),
        ("count", ctypes.c_longlong),
        ("norm", ctypes.c_void_p),
        ("found_inf", ctypes.c_void_p),
    )


def reference(gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return (norm, found_inf), computed in plain torch with a float64 sum.

    Gradients may have any floating dtype. There is no host synchronisation.
    """
    device = gradients[0].device if gradients else torch.device("cpu")
    squares = [gradient.double().square().sum() for gradient in gradients]
    total = (
        torch.stack(squares).sum()
        if squares
        else torch.zeros((), dtype=torch.float64, device=device)
    )
    return total.sqrt().float(), (~total.isfinite()).float()


def launches(
    gradients: Sequence[Tensor], new: Callable[[int, torch.dtype], Tensor]
) -> tuple[list[Launch], Tensor, Tensor, Tensor]:
    """Return the launches in order, then norm, found_inf, and the memory between the launches.

    `new(elements, dtype)` allocates results and memory.
    """
    parts: list[tuple[Any, int, torch.dtype]] = []
    for dtype in ELEMENTS:
        parts += [
            (packing, blocks, dtype)
            for packing, _, blocks in packed([[g for g in gradients if g.dtype is dtype]])
        ]
    total_blocks = sum(blocks for _, blocks, _ in parts)
    partial, norm, found_inf = (
        new(total_blocks, torch.float64),
        new(1, torch.float32),
        new(1, torch.float32),
    )
    result, before = [], 0
    for packing, blocks, dtype in parts:
        arguments = _SquaresArguments(packing, partial.data_ptr() + 8 * before)
        result.append(Launch(SOURCE, "sum_squares", ELEMENTS[dtype], blocks, arguments))
        before += blocks
    finish = _FinishArguments(
        partial.data_ptr(), total_blocks, norm.data_ptr(), found_inf.data_ptr()
    )
    dtype = parts[0][2] if parts else torch.float32
    result.append(Launch(SOURCE, "finish_norm", ELEMENTS[dtype], 1, finish))
    return result, norm, found_inf, partial


def gradient_statistics(gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return (norm, found_inf), two fp32 scalars on the gradients' device.

    Takes at least one dense floating-point tensor.

    Raises:
        InputError: for no tensors at all, for several devices, and for tensors that are not
            floating point.
    """
    if not gradients:
        raise InputError("gradient_statistics got no gradients.", parameter="gradients")
    device = gradients[0].device
    for gradient in gradients:
        if gradient.device != device or not gradient.is_floating_point():
            raise InputError(
                "gradient_statistics takes floating-point tensors of one device; got "
                f"{gradient.dtype} on {gradient.device}.",
                parameter="gradients",
            )
    return torch.ops.gallery.gradient_statistics(list(gradients))


def _device(gradients: Sequence[Tensor]) -> torch.device | None:
    return gradients[0].device if all(g.dtype in ELEMENTS for g in gradients) else None


def _kernel(gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    device = gradients[0].device
    dense = [gradient if is_dense(gradient) else gradient.contiguous() for gradient in gradients]
    plan, norm, found_inf, _partial = launches(
        dense, lambda elements, dtype: torch.empty(elements, dtype=dtype, device=device)
    )
    for kernel_launch in plan:
        launch.run(kernel_launch, device)
    return norm[0], found_inf[0]


def _fake(gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    return gradients[0].new_empty((), dtype=torch.float32), gradients[0].new_empty(
        (), dtype=torch.float32
    )


register(
    "gradient_statistics",
    "(Tensor[] gradients) -> (Tensor, Tensor)",
    reference=reference,
    kernel=_kernel,
    device=_device,
    fake=_fake,
)
