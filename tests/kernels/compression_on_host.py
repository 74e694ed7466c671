"""Packed gradients: the kernel that makes them, run on the CPU, and what their bytes mean."""

from __future__ import annotations

import torch
from cuda_on_host import host
from cuda_on_host.memory import Guarded, poisoned
from hypothesis import strategies as st

from gallery_lib.kernels.compression_launch import pack_launch
from gallery_lib.kernels.compression_layout import GROUP, packed_bytes, scale_bytes
from gallery_lib.kernels.runtime.launch import ELEMENTS

U = 2.0**-24
SIZES = st.one_of(
    st.integers(0, 40), st.sampled_from([255, 256, 257, 2047, 2048, 2049]), st.integers(0, 5000)
)
DTYPES = st.sampled_from(list(ELEMENTS))
EXPONENTS = st.sampled_from([-147.0, -128.0, -3.0, 100.0])
FILLING = 15
"""Largest number of bytes at the ends of scales and codes that hold anything."""


def pack_on_host(gradient, error, wire, offset=None, schedule=0):
    """Return (packed, error afterwards) from the kernel, run on the CPU.

    All bytes that nobody wrote are 0xFF.
    """
    packed = poisoned((packed_bytes(len(gradient), wire),), torch.uint8, 0)
    memory = [
        Guarded(gradient, offset),
        packed,
        *([] if error is None else [Guarded(error, offset)]),
    ]
    host.run(
        pack_launch(
            memory[0].tensor, None if error is None else memory[2].tensor, wire, packed.tensor
        ),
        schedule,
    )
    for each in memory:
        each.check()
    return packed.tensor, None if error is None else memory[2].tensor


def meaning(packed: torch.Tensor, size: int, wire: str) -> torch.Tensor:
    """Return what the bytes stand for, in float64."""
    if wire == "bf16":
        return packed[: 2 * size].view(torch.bfloat16).double()
    scales = (
        packed[: 4 * -(-size // GROUP)].view(torch.float32).double().repeat_interleave(GROUP)[:size]
    )
    return packed[scale_bytes(size) :][:size].view(torch.int8).double() * scales
