"""Launches of the compression kernels as plain data: a thread works on eight elements."""

from __future__ import annotations

import ctypes

from torch import Tensor

from gallery_lib.kernels.compression_layout import scale_bytes
from gallery_lib.kernels.runtime.launch import ELEMENTS, THREADS, Launch

SOURCE = "compression.cu"
_ELEMENTS_OF_THREAD = 8


class _PackArguments(ctypes.Structure):
    _fields_ = (
        ("gradient", ctypes.c_void_p),
        ("error", ctypes.c_void_p),
        ("size", ctypes.c_longlong),
        ("scales", ctypes.c_void_p),
        ("packed", ctypes.c_void_p),
    )


class _AccumulateArguments(ctypes.Structure):
    _fields_ = (
        ("sum", ctypes.c_void_p),
        ("size", ctypes.c_longlong),
        ("add", ctypes.c_int),
        ("factor", ctypes.c_float),
        ("ranks", ctypes.c_int),
        ("bytes_of_rank", ctypes.c_longlong),
        ("packed", ctypes.c_void_p),
        ("codes_from", ctypes.c_longlong),
    )


def _blocks(size: int) -> int:
    return -(-size // (THREADS * _ELEMENTS_OF_THREAD))


def pack_launch(gradient: Tensor, error: Tensor | None, wire: str, packed: Tensor) -> Launch:
    """Return the launch that packs contiguous tensors.

    `packed` holds `packed_bytes` and starts at a multiple of 16 bytes.
    """
    size, start = gradient.numel(), packed.data_ptr()
    codes = start + (scale_bytes(size) if wire == "int8" else 0)
    kept = None if error is None else error.data_ptr()
    arguments = _PackArguments(gradient.data_ptr(), kept, size, start, codes)
    return Launch(SOURCE, f"pack_{wire}", ELEMENTS[gradient.dtype], _blocks(size), arguments)


def accumulate_launch(sum: Tensor, packed: Tensor, wire: str, factor: float, add: bool) -> Launch:
    """Return the launch that adds packed gradients up into a contiguous `sum`.

    `packed` is [ranks, packed_bytes], its rows at multiples of 16 bytes.
    """
    size, ranks, apart = sum.numel(), len(packed), packed.stride(0)
    codes_from, start = scale_bytes(size), packed.data_ptr()
    arguments = _AccumulateArguments(
        sum.data_ptr(), size, add, factor, ranks, apart, start, codes_from
    )
    return Launch(SOURCE, f"accumulate_{wire}", ELEMENTS[sum.dtype], _blocks(size), arguments)
