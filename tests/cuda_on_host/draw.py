"""Hypothesis strategies for kernels: tensor sizes, alignments, magnitudes and thread orders."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from gallery_lib.kernels.runtime.launch import CHUNK

SCHEDULES = st.integers(0, 2**16)
SIZES = st.one_of(
    st.integers(0, 40),
    st.sampled_from([255, 256, 257, 1023, 1025, 4096, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3]),
    st.integers(0, 3 * CHUNK),
)
OFFSETS = st.one_of(st.none(), st.integers(0, 9))
"""Offset of the first element from a page's start; None: the last element ends at a page's end."""
UNIT_ROUNDOFF = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
"""Half the relative distance of neighbouring values, by dtype."""
SMALLEST = {torch.float32: 2.0**-149, torch.bfloat16: 2.0**-133, torch.float16: 2.0**-24}
"""Smallest denormal by dtype. Values below it round to it or to 0."""


def values(
    size: int, dtype: torch.dtype, seed: int, exponent: float = 0.0, spread: float = 2.0
) -> torch.Tensor:
    """Return finite numbers of either sign around 2^exponent, with magnitudes over 2^±spread."""
    generator = torch.Generator().manual_seed(seed)
    magnitudes = torch.exp2(
        exponent + spread * (2 * torch.rand(size, generator=generator, dtype=torch.float64) - 1)
    )
    signs = torch.randint(0, 2, (size,), generator=generator) * 2 - 1
    limit = torch.finfo(dtype).max
    return (magnitudes * signs).clamp(-limit, limit).to(dtype)
