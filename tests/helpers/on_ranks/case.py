"""One side of a case of against_torch, in processes that run one after another."""

from __future__ import annotations

import gc

import torch.distributed as dist
from against_torch import rank


def side(text: str, side: str, folder: str) -> None:
    rank.write(text, side, dist.get_rank(), folder)
    gc.collect()
