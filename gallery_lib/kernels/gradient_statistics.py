"""The L2 norm of all gradients and whether any is not finite: `gallery::gradient_statistics`.

One read of the gradients gives both. The norm is that of the concatenated gradients. Both results
stay on the device as fp32 scalars, the form in which torch's fused optimizers and ours take
`found_inf`. Nothing waits for the device. Squares neither overflow nor underflow, whatever the
gradients' sizes. So `found_inf` says exactly whether an element is infinite or NaN, and the norm is
finite whenever fp32 can represent it.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import torch
from torch import Tensor

from gallery_lib.kernels.runtime.launch import (
    ELEMENTS,
    LONG,
    POINTER,
    Launch,
    filled,
    is_dense,
    packed,
    run,
    structure,
    tensor_list,
    tensors_of_a_launch,
)
from gallery_lib.kernels.runtime.operators import register

_SOURCE = "gradient_statistics.cu"
_Finish = structure(partial=POINTER, count=LONG, norm=POINTER, found_inf=POINTER)


def _reference(gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    total = torch.stack([gradient.double().square().sum() for gradient in gradients]).sum()
    return total.sqrt().float(), (~total.isfinite()).float()


def gradient_statistics(gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return (norm, found_inf), two fp32 scalars on the gradients' device.

    Takes at least one tensor, all dense, floating-point and on one device.
    """
    assert len(set(map(attrgetter("device"), gradients))) == 1
    assert all(map(Tensor.is_floating_point, gradients))
    return torch.ops.gallery.gradient_statistics(list(gradients))


def _device(gradients: Sequence[Tensor]) -> torch.device | None:
    return gradients[0].device if all(g.dtype in ELEMENTS for g in gradients) else None


def _kernel(gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    first, tensors = gradients[0], tensors_of_a_launch(gradients[0].device)
    dense = [gradient if is_dense(gradient) else gradient.contiguous() for gradient in gradients]
    parts = [
        (dtype, packing, blocks)
        for dtype in dict.fromkeys(gradient.dtype for gradient in dense)
        for packing, blocks in packed([[g for g in dense if g.dtype is dtype]], tensors)
    ]
    count = sum(blocks for *_, blocks in parts)
    partial = first.new_empty(count, dtype=torch.float64)
    norm, found_inf = (first.new_empty((), dtype=torch.float32) for _ in range(2))
    squares = structure(tensors=tensor_list(1, tensors), partial=POINTER)
    address = partial.data_ptr()
    for dtype, packing, blocks in parts:
        defines = (*ELEMENTS[dtype], ("TENSORS", str(tensors)))
        arguments = filled(squares, packing, address)
        run(Launch(_SOURCE, "sum_squares", defines, blocks, arguments), first.device)
        address += 8 * blocks
    finish = filled(_Finish, partial, count, norm, found_inf)
    run(Launch(_SOURCE, "finish_norm", defines, 1, finish), first.device)
    return norm, found_inf


def _fake(gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    new = gradients[0].new_empty
    return new((), dtype=torch.float32), new((), dtype=torch.float32)


register(
    "gradient_statistics",
    "(Tensor[] gradients) -> (Tensor, Tensor)",
    reference=_reference,
    kernel=_kernel,
    device=_device,
    fake=_fake,
)
