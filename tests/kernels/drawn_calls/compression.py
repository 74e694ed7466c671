"""Compression of gradients."""

from __future__ import annotations

import random
from typing import Any

from kernels.drawn_calls.tensors import drawn_dtype, drawn_tensor


def packing(draw: random.Random) -> None:
    """Call the operators of compression below their checks in Python.

    Their buffers mostly fit.
    """
    import torch

    import gallery_lib.kernels.compression  # noqa: F401  registers the operators
    from gallery_lib.kernels import compression_layout

    def buffer(size: int, dtype: Any, dims: int = 1) -> Any:
        size = size if draw.random() < 0.9 else max(0, size + draw.choice([-16, -1, 1, 300]))
        dtype = dtype if draw.random() < 0.95 else drawn_dtype(draw)
        return drawn_tensor(draw, (size,) if dims == 1 else (draw.randint(0, 3), size), dtype)

    size = draw.choice([0, 1, 5, 255, 256, 257, 1000])
    each = compression_layout.packed_bytes(size, "int8")
    values = drawn_tensor(draw, (size,), torch.float32)
    if draw.random() < 0.5:
        error = buffer(size, torch.float32) if draw.random() < 0.6 else None
        error = values if error is not None and draw.random() < 0.1 else error
        torch.ops.gallery.pack_gradient_(values, error, "int8", buffer(each, torch.uint8))
        return
    packed = buffer(each, torch.uint8, dims=2)
    # Rows with a distance of their own, in memory that may be too small for them.
    if draw.random() < 0.2:
        packed = torch.ones(draw.choice([each, 3 * each + 40]), dtype=torch.uint8)
        apart = draw.choice([0, each, each + 16])
        packed = torch.as_strided(
            packed, (1 + draw.randint(0, 1) * (packed.numel() > each), each), (apart, 1)
        )
    torch.ops.gallery.accumulate_gradient_(values, packed, "int8", 0.5, draw.random() < 0.5)
