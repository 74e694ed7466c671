"""Operators for images: batch norm and max pooling."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from kernels.drawn_calls.tensors import drawn_dtype, drawn_tensor


def normalising(draw: random.Random) -> None:
    """Call batch norm's functions with tensors that mostly fit, below their checks in Python."""
    import torch

    from gallery_lib.kernels import batch_norm_cpp

    shape = draw.choice(
        [(2, 3, 4, 5), (1, 16, 1, 1), (3, 17, 9, 1), (2, 2051, 3, 3), (70, 40, 5, 5)]
    )
    dtype = draw.choice([torch.float32, torch.bfloat16])

    def images() -> Any:
        if draw.random() < 0.03:
            return drawn_tensor(draw, draw.choice([shape, (0, 3, 4, 5), (7,)]), drawn_dtype(draw))
        values = torch.randn(shape, dtype=torch.float32).to(dtype)
        values = values.contiguous(memory_format=torch.channels_last)
        if draw.random() < 0.03:
            values.untyped_storage().resize_(values.untyped_storage().nbytes() // 2)
        return values

    def channels() -> Any:
        size = shape[1] if draw.random() < 0.99 else shape[1] + draw.choice([-1, 1])
        return (
            drawn_tensor(draw, (size,), torch.float32) if draw.random() < 0.1 else torch.rand(size)
        )

    def perhaps(make: Callable[[], Any]) -> Any:
        return make() if draw.random() < 0.5 else None

    function = draw.choice(["statistics", "forward", "sums", "gradient"])
    x, mean, second, sums = images(), channels(), channels(), [channels(), channels()]
    affine = [perhaps(channels), perhaps(channels)]
    if function == "statistics":
        columns = [x, *[None] * 5, mean, second, None, None, *(sums if draw.random() < 0.5 else [])]
    elif function == "forward":
        columns = [x, None, None, None, perhaps(images), images(), mean, second, *affine]
    elif function == "gradient":
        columns = [x, images(), None, None, None, images(), mean, second, *affine, *sums]
    else:
        of_result = [images(), None, images()] if draw.random() < 0.5 else [None] * 3
        more = images() if of_result[0] is not None and draw.random() < 0.5 else None
        columns = [x, images(), more, *of_result, mean, second, *affine, *sums]
    if draw.random() < 0.05:
        columns[draw.randrange(len(columns))] = columns[draw.randrange(len(columns))]
    batch_norm_cpp._call(function, *columns, flag=draw.random() < 0.5, number=0.1, epsilon=1e-5)


def pooling(draw: random.Random) -> None:
    """Call max pooling with tensors and windows that mostly fit, below their checks in Python."""
    import torch

    from gallery_lib.kernels import max_pool

    kernel, stride, padding = (
        [draw.choice(sizes), draw.choice(sizes)] for sizes in ((1, 2, 3), (1, 2, 3), (0, 0, 1))
    )
    sizes = [draw.randint(1, 9), draw.randint(1, 9)]
    pooled = max_pool.pooled_sizes(sizes, kernel, stride, padding, draw.random() < 0.5)
    pooled = [max(1, size + (draw.random() < 0.05) - (draw.random() < 0.05)) for size in pooled]
    both, dtype = (
        [draw.randint(1, 3), draw.choice([1, 16, 19])],
        draw.choice([torch.float32, torch.bfloat16]),
    )

    def images(size: list[int], kind: Any) -> Any:
        if draw.random() < 0.05:
            return drawn_tensor(draw, draw.choice([(*both, *size), (7,)]), drawn_dtype(draw))
        values = torch.zeros(*both, *size).random_(9).to(kind)
        values = values.contiguous(memory_format=torch.channels_last)
        if draw.random() < 0.03:
            values.untyped_storage().resize_(values.untyped_storage().nbytes() // 2)
        return values

    tensors = [images(sizes, dtype), images(pooled, dtype), images(pooled, torch.uint8)]
    if draw.random() < 0.05:
        tensors[draw.randrange(2)] = tensors[1]
    way = draw.choice(["forward", "backward"])
    max_pool._call(way, tensors, kernel, stride, padding)
