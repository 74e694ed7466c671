"""Tensors of all ranks as one, with gradients: for losses that compare every sample with every other.

Such a loss is not a mean over samples, so the mean of the ranks' own losses would be another loss. Instead every rank
gathers what the ranks computed and then computes the same loss from all of it.
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
        # Parameters see the loss through every rank's part, and DistributedDataParallel takes the mean of what the
        # ranks found, each through its own part alone: the sum over ranks is wanted, so each is multiplied by their number.
        world_size = process_group.world_size()
        return gradient.chunk(world_size)[process_group.rank()] * world_size


def gather_for_common_loss(own: Tensor) -> Tensor:
    """`own` [N, …] of every rank in order, [ranks·N, …], for a loss that is the same on every rank; N must be, too.

    With DistributedDataParallel's averaging, gradients are those of one process with all samples: no communication
    takes place in the backward pass, since every rank knows the gradient of the whole. `own` itself in a run of one
    process.
    """
    return _Gather.apply(own) if dist.is_initialized() and process_group.world_size() > 1 else own
