"""Drawn batches of batch norm, and the memory that its kernels get on the host.

U is the unit roundoff of fp32. A thread takes in a 32nd of its slab's rows, then the parts of 2
other threads and of 8 warps: `terms` steps, each of which adds a few U of what has been added so
far.
"""

from __future__ import annotations

import torch
from cuda_on_host import draw, host
from cuda_on_host.memory import Guarded, poisoned
from hypothesis import strategies as st

from gallery_lib.kernels import batch_norm_launch as plan
from gallery_lib.kernels.batch_norm_reference import Channels
from gallery_lib.kernels.runtime.launch import ELEMENTS

U = 2.0**-24
EPS = 1e-5
ROWS = st.one_of(st.integers(1, 40), st.sampled_from([127, 128, 129, 300]))
CHANNELS = st.sampled_from([1, 3, 4, 8, 20, 64, 72, 100])
DTYPES = st.sampled_from(list(ELEMENTS))
OFFSETS = st.sampled_from([0, None, 1])
SEEDS = st.integers(0, 2**16)


class Memory:
    """Tensors that a test lays out between guard pages."""

    def __init__(self) -> None:
        self.all: list[Guarded] = []

    def take(self, values: torch.Tensor, offset: int | None = None) -> torch.Tensor:
        self.all.append(Guarded(values, offset))
        return self.all[-1].tensor

    def new(
        self, *shape: int, dtype: torch.dtype = torch.float32, offset: int | None = None
    ) -> torch.Tensor:
        self.all.append(poisoned(shape, dtype, offset))
        return self.all[-1].tensor

    def run(self, *launches, schedule: int = 0) -> None:
        for each in launches:
            host.run(each, schedule)
        for guarded in self.all:
            guarded.check()


def as_batch(matrix: torch.Tensor) -> torch.Tensor:
    """Return [rows, C] as a view [1, C, rows, 1] in channels_last."""
    return matrix[None, :, None].permute(0, 3, 1, 2)


def channel_values(memory: Memory, channels: int, seed: int, affine: bool) -> Channels:
    """Return any mean, deviation, weight and bias."""
    each = [draw.values(channels, torch.float32, seed + k) for k in range(4)]
    weight_and_bias = [memory.take(values) for values in each[2:]] if affine else [None, None]
    return Channels(memory.take(each[0]), memory.take(each[1].abs()), *weight_and_bias)


def terms_of(rows: int, slabs: plan.Slabs) -> int:
    return min(rows, slabs.rows_per_slab) // plan.LANES + 12
