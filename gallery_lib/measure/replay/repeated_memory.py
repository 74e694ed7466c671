"""Repeating memory: a range of addresses that maps one shorter piece of memory again and again.

It is for data that is written, handed on and forgotten. Otherwise that data would need memory for
its whole length.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref

import torch
from torch import Tensor

PIECE_BYTES = 64 * 2**20
"""Size of the repeated piece, which is more than caches hold.

So a pass through the range finds as little of it in a cache as of memory that does not repeat.
"""
_MAP_FIXED = 0x10  # Linux's value; Python's mmap does not name it
_FAILED = ctypes.c_void_p(-1).value


def repeated(size: int, piece_bytes: int = PIECE_BYTES) -> Tensor:
    """Return [size] bytes of memory in which bytes `piece_bytes` apart are the same one.

    `piece_bytes` is a number of whole pages. Ordinary memory comes back where `size` is no longer
    than a piece, and on systems other than Linux.

    Raises:
        OSError: when the system has no memory.
    """
    if size <= piece_bytes or sys.platform != "linux":
        return torch.empty(size, dtype=torch.uint8)
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    )
    library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)

    def mapped(address: int | None, length: int, protection: int, flags: int, file: int) -> int:
        mapped = library.mmap(address, length, protection, flags, file, 0)
        if mapped == _FAILED:
            number = ctypes.get_errno()
            raise OSError(
                number,
                f"{length / 2**20:.0f} MiB of addresses could not be had: {os.strerror(number)}",
            )
        return int(mapped)

    length = -(-size // piece_bytes) * piece_bytes
    file = os.memfd_create("repeated")
    try:
        os.ftruncate(file, piece_bytes)
        # Reserve the range as a whole.
        begin = mapped(None, length, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        array = (ctypes.c_char * size).from_address(begin)
        weakref.finalize(array, library.munmap, begin, length)
        for address in range(begin, begin + length, piece_bytes):
            mapped(
                address,
                piece_bytes,
                mmap.PROT_READ | mmap.PROT_WRITE,
                mmap.MAP_SHARED | _MAP_FIXED,
                file,
            )
    finally:
        os.close(file)
    return torch.frombuffer(array, dtype=torch.uint8)
