"""Compression of gradients in plain torch: reference of the kernels and of the C++."""

from __future__ import annotations

import torch
from torch import Tensor

from gallery_lib.kernels.compression_layout import GROUP, packed_bytes, scale_bytes


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
