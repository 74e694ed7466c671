"""Operator `gallery::dropout_mask`: which elements dropout keeps in compiled code on the CPU.

The bits are those of Inductor's generated code, which draws one number at a time. Here C++
(`cpu/dropout.cpp`) draws 64 at a time. Without a C++ compiler torch's integer operators do it.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gallery_lib.kernels.runtime import cpp
from gallery_lib.kernels.runtime.operators import register

NAME = "dropout_mask"
_SOURCE, _OPTIONS = "dropout.cpp", ("-fopenmp",)
_WORD, _SCALE = 0xFFFFFFFF, 4.6566127342e-10


def available() -> bool:
    """Return whether the C++ could be built here; if not, a warning has said so."""
    return cpp.library(_SOURCE, *_OPTIONS) is not None


def _in_cpp(seeds: Tensor, place: int, size: Sequence[int], threshold: float) -> Tensor:
    kept = torch.empty(size, dtype=torch.bool)
    library = cpp.library(_SOURCE, *_OPTIONS)
    assert library is not None
    library.dropout_keep(
        ctypes.c_void_p(kept.data_ptr()),
        ctypes.c_int64(kept.numel()),
        ctypes.c_int64(int(seeds[place])),
        ctypes.c_float(threshold),
        ctypes.c_int64(torch.get_num_threads()),
    )
    return kept


def _fake(seeds: Tensor, place: int, size: Sequence[int], threshold: float) -> Tensor:
    return seeds.new_empty(size, dtype=torch.bool)


def reference(seed: int, size: Sequence[int], threshold: float) -> Tensor:
    """Return the mask of `size` in plain torch: True where the element's number is above.

    Numbers are Philox4x32-10's (Salmon et al., 2011) in [0, 1); an element's counter is its place
    in memory, its key the seed.
    """
    a = torch.arange(math.prod(size)) & _WORD
    b, c, d = torch.zeros_like(a), torch.zeros_like(a), torch.zeros_like(a)
    keys = [seed & _WORD, 0]
    for _ in range(10):
        (high, low), (other_high, other_low) = _product(0xD2511F53, a), _product(0xCD9E8D57, c)
        a, b, c, d = other_high ^ b ^ keys[0], other_low, high ^ d ^ keys[1], low
        keys = [(keys[0] + 0x9E3779B9) & _WORD, (keys[1] + 0xBB67AE85) & _WORD]
    numbers = (a & 0x7FFFFFFF).float() * torch.tensor(_SCALE)
    return (numbers > torch.tensor(threshold)).reshape(size)


def _product(factor: int, words: Tensor) -> tuple[Tensor, Tensor]:
    """Return the high and the low 32 bits of factor times words, without 64-bit overflow."""
    low_half = words * (factor & 0xFFFF)
    high_half = words * (factor >> 16) + (low_half >> 16)
    return high_half >> 16, ((high_half << 16) | (low_half & 0xFFFF)) & _WORD


register(
    NAME,
    "(Tensor seeds, int place, SymInt[] size, float threshold) -> Tensor",
    reference=lambda seeds, place, *rest: reference(int(seeds[place]), *rest),
    fake=_fake,
    cpp=_in_cpp,
    takes_cpp=lambda *_: available(),
)
