"""Tensors of drawn layouts, shapes and dtypes, some of them broken."""

from __future__ import annotations

import random
from typing import Any


def drawn_tensor(draw: random.Random, shape: tuple[int, ...], dtype: Any) -> Any:
    """Return a tensor in one of many layouts, or a broken one.

    Its storage ends where its last element does.
    """
    import torch

    plain = torch.empty(shape, dtype=torch.float64).uniform_(-100, 100).to(dtype)
    way = draw.choice(
        ["plain"] * 6 + ["turned", "gaps", "expanded", "part", "shrunk", "gone", "shifted"]
    )
    if way == "turned":
        order = tuple(range(len(shape)))[::-1]
        return plain.permute(order).contiguous().permute(order)
    if way == "gaps" and shape:
        return torch.empty(*shape, 2, dtype=dtype).fill_(1)[..., 0]
    if way == "expanded" and shape and plain.numel():
        return plain.flatten()[:1].clone().reshape([1] * len(shape)).expand(shape)
    if way == "part":
        return torch.ones(plain.numel() + 3, dtype=dtype)[3:].reshape(shape)
    if way == "shrunk" and plain.numel() > 1:
        plain.untyped_storage().resize_(plain.untyped_storage().nbytes() // 2)
    if way == "gone":
        plain.untyped_storage().resize_(0)
    if way == "shifted" and plain.numel() and not dtype.is_complex:
        size = plain.element_size()
        return torch.frombuffer(
            bytearray(plain.numel() * size + 1), dtype=dtype, offset=1, count=plain.numel()
        ).reshape(shape)
    return plain


def drawn_shape(draw: random.Random) -> tuple[int, ...]:
    return draw.choice(
        [
            (),
            (0,),
            (1,),
            (7,),
            (255,),
            (256,),
            (257,),
            (3, 5),
            (2, 3, 4, 5),
            (0, 4),
            (40000,),
            (1, 9, 1),
        ]
    )


def drawn_dtype(draw: random.Random) -> Any:
    import torch

    others = [
        torch.float64,
        torch.bfloat16,
        torch.float16,
        torch.complex64,
        torch.uint8,
        torch.int64,
    ]
    return draw.choice([torch.float32] * 24 + others)
