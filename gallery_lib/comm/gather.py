"""All-gather with gradients, for losses that compare every sample with every other.

Such a loss is not a mean over samples, so the mean of the ranks' own losses would be another loss.
Instead every rank gathers what the ranks computed, and computes the same loss from all of it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gallery_lib.comm import process_group


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor) -> Tensor:
        parts = [torch.empty_like(own) for _ in range(process_group.world_size())]
        dist.all_gather(parts, own.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        # Each rank finds gradients through its own part alone. The sum over ranks is wanted, and
        # DistributedDataParallel takes the mean, so gradients are multiplied by the world size.
        world_size = process_group.world_size()
        return gradient.chunk(world_size)[process_group.rank()] * world_size


def gather_for_common_loss(own: Tensor) -> Tensor:
    """Return `own` [N, …] of every rank in order, as [ranks·N, …].

    It is for a loss that is the same on every rank; N must be the same, too. With
    DistributedDataParallel's averaging, gradients are those of one process with all samples. The
    backward pass needs no communication, since every rank knows the gradient of the whole. A run of
    one process gets `own` itself.
    """
    return _Gather.apply(own) if dist.is_initialized() and process_group.world_size() > 1 else own
