"""Layout of compressed gradients on the wire: where scales and codes lie, and how many bytes.

int8: scales, one for every GROUP elements, then codes. bf16: the values. Each part is padded to a
multiple of 16 bytes, and the padding may hold anything.
"""

from __future__ import annotations

GROUP = 256
"""Elements that share a scale in int8."""
WIRES = ("int8", "bf16")
ALIGNMENT = 16
"""Bytes; packed gradients start at a multiple of them."""


def _rounded_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def scale_bytes(size: int) -> int:
    """Return how many bytes the scales of `size` elements take in front of their codes."""
    return _rounded_up(-(-size // GROUP) * 4, ALIGNMENT)


def packed_bytes(size: int, wire: str) -> int:
    """Return how many bytes `size` elements take on the wire, which is `int8` or `bf16`."""
    return (
        scale_bytes(size) + _rounded_up(size, ALIGNMENT)
        if wire == "int8"
        else _rounded_up(2 * size, ALIGNMENT)
    )
