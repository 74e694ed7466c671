"""Compression of fp32 gradients as int8 in C++ on the CPU: `cpu/compression.cpp`."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from gallery_lib.kernels.runtime import cpu_library, cpu_tensors

SOURCE = "compression.cpp"


class _PackArguments(ctypes.Structure):
    _fields_ = (
        ("descriptors", ctypes.c_void_p),
        ("length", ctypes.c_longlong),
        ("keep", ctypes.c_longlong),
    )


class _AccumulateArguments(ctypes.Structure):
    _fields_ = (
        ("descriptors", ctypes.c_void_p),
        ("length", ctypes.c_longlong),
        ("add", ctypes.c_longlong),
        ("factor", ctypes.c_float),
    )


def _function(name: str) -> Any:
    library = cpu_library.library(SOURCE)
    assert library is not None
    return cpu_tensors.entry(library, name)


def _takes(buffer: Tensor, wire: str) -> bool:
    return (
        wire == "int8" and buffer.dtype is torch.float32 and cpu_library.library(SOURCE) is not None
    )


def takes_pack(gradient: Tensor, error: Tensor | None, wire: str, out: Tensor) -> bool:
    """Return whether `pack` does the work, on a machine that can build it."""
    return _takes(gradient, wire)


def pack(gradient: Tensor, error: Tensor | None, wire: str, out: Tensor) -> None:
    """Pack the gradient into `out`, and update `error`.

    Raises:
        cpu_tensors.Refused: for tensors that do not fit together; nothing is changed then.
    """
    row = (gradient, out) if error is None else (gradient, out, error)
    descriptors = cpu_tensors.described(row)
    arguments = _PackArguments(*descriptors.buffer_info(), error is not None)
    code = _function("pack_int8")(ctypes.byref(arguments))
    cpu_tensors.check(code, "pack", [row], ("gradient", "out", "error"))


def takes_accumulate(sum: Tensor, packed: Tensor, wire: str, factor: float, add: bool) -> bool:
    """Return whether `accumulate` does the work, on a machine that can build it."""
    return _takes(sum, wire)


def accumulate(sum: Tensor, packed: Tensor, wire: str, factor: float, add: bool) -> None:
    """Add packed gradients up into `sum`.

    Raises:
        cpu_tensors.Refused: for tensors that do not fit together; nothing is changed then.
    """
    row = (sum, packed)
    descriptors = cpu_tensors.described(row)
    arguments = _AccumulateArguments(*descriptors.buffer_info(), add, factor)
    code = _function("accumulate_int8")(ctypes.byref(arguments))
    cpu_tensors.check(code, "accumulate_", [row], ("sum", "packed"))
