"""One side of a case of against_torch, in processes that run one after another."""

from __future__ import annotations

import gc

import torch.distributed as dist
from against_torch import rank


def side(text: str, side: str, folder: str) -> None:
    """Run the side, and destroy the groups of its model's streams, which would add up."""
    rank.write(text, side, dist.get_rank(), folder)
    gc.collect()
    groups = [group for group in dist.distributed_c10d._world.pg_map if group != dist.group.WORLD]
    for group in groups:
        dist.destroy_process_group(group)
