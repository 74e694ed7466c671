"""Optimizers: single rules on drawn columns, and steps with drawn gradients."""

from __future__ import annotations

import random
from typing import Any

from kernels.drawn_calls.tensors import drawn_dtype, drawn_shape, drawn_tensor


def step(draw: random.Random) -> None:
    """Run one of the rules on drawn columns.

    Some columns do not fit together, or are the same memory.
    """
    from gallery_lib.kernels import cpu_optimizers as rules

    count = draw.randint(0, 4)
    shapes = [drawn_shape(draw) for _ in range(count)]

    def column() -> list[Any]:
        return [
            drawn_tensor(draw, s if draw.random() < 0.97 else drawn_shape(draw), drawn_dtype(draw))
            for s in shapes
        ]

    columns = [column() for _ in range(4)]
    if count and draw.random() < 0.15:
        columns[draw.randrange(4)][draw.randrange(count)] = columns[draw.randrange(4)][
            draw.randrange(count)
        ]
    steps = [float(draw.randint(1, 9)) for _ in range(count - (draw.random() < 0.02))]
    shared = {"lr": 0.1, "weight_decay": draw.choice([0.0, 0.1]), "maximize": False}
    adams = {
        **shared,
        "betas": (0.9, 0.99),
        "eps": 1e-8,
        "decoupled_weight_decay": draw.random() < 0.5,
    }
    last = columns[3] if draw.random() < 0.5 else None
    draw.choice(
        [
            lambda: rules.adam_(*columns, steps, **adams),
            lambda: rules.radam_(*columns, steps, **adams),
            lambda: rules.sgd_(
                columns[0], columns[1], last, momentum=0.9, nesterov=draw.random() < 0.5, **shared
            ),
            lambda: rules.rmsprop_(*columns[:3], last, alpha=0.9, eps=1e-8, momentum=0.9, **shared),
        ]
    )()


def training(draw: random.Random) -> None:
    """Take a few steps of an optimizer whose gradients come from a closure, in any dtype."""
    import torch

    from gallery_lib.optim import fused_cpu

    kind = draw.choice(
        [fused_cpu.Adam, fused_cpu.AdamW, fused_cpu.SGD, fused_cpu.RMSprop, fused_cpu.RAdam]
    )
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.complex64]
    weights = [
        torch.nn.Parameter(torch.ones(drawn_shape(draw), dtype=draw.choice(dtypes)))
        for _ in range(3)
    ]
    optimizer = kind(weights, lr=0.1, **({"momentum": 0.9} if kind is fused_cpu.SGD else {}))

    def closure() -> float:
        for weight in weights:
            gradient = torch.ones_like(weight)
            sparse = draw.random() < 0.1 and weight.dim()
            weight.grad = (
                gradient.to_sparse()
                if sparse
                else gradient.flatten()[:1].sum().expand(weight.shape)
            )
        return 0.0

    for _ in range(3):
        optimizer.step(closure)
