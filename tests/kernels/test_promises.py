"""Every operator keeps what it promises the compiler: schema, fake results, autograd, versions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from kernels.optimizer_cases import CASES
from torch import Tensor

from gallery_lib.kernels import (  # noqa: F401  some only register operators
    batch_norm,
    compression,
    cross_entropy,
    dropout_mask,
    gradient_statistics,
    image_batch,
    max_pool,
    mixed_product,
)
from gallery_lib.kernels.optimizer_step import COUNTS_STEPS, NUMBERS, SWITCHES

OPERATORS = torch.ops.gallery
BOTH = (torch.float32, torch.bfloat16)
Calls = Iterator[tuple[str, tuple[Any, ...]]]


def losses() -> Calls:
    labels, rows = torch.tensor([1, -100, 6, 0]), torch.rand(2, 4)
    for dtype in BOTH:
        logits = torch.randn(4, 7, dtype=dtype)
        yield "cross_entropy_gradient", (logits.clone(), labels, 0.1, -100, *rows.unbind())
        yield "cross_entropy_rows", (logits.requires_grad_(), labels, 0.1, -100)


def gradients() -> Calls:
    drawn = [torch.randn(5), torch.randn(3, 2, dtype=torch.bfloat16), torch.empty(0)]
    yield "gradient_statistics", (drawn,)
    gradient, error = torch.randn(300), torch.randn(300)
    out = torch.zeros(compression.packed_bytes(300), dtype=torch.uint8)
    yield "pack_gradient_", (gradient, error, out)
    yield "pack_gradient_", (gradient, None, out)
    packed = torch.stack([compression.pack(each) for each in (gradient, error)])
    yield "accumulate_gradient_", (gradient.bfloat16(), packed, 0.5, True)


def batch_norms() -> Calls:
    for dtype in BOTH:
        x, channels = torch.randn(2, 4, 3, 3, dtype=dtype), torch.rand(4, 4).unbind()
        yield "batch_norm_statistics_", (x, torch.zeros(4), torch.ones(4), 0.1, 1e-5)
        yield "batch_norm_relu_gradient", (x, x.clone(), *channels)
        affine = [each.clone().requires_grad_() for each in channels[2:]]
        yield "batch_norm_relu", (x.clone().requires_grad_(), *channels[:2], *affine)


def images() -> Calls:
    bytes_ = torch.randint(0, 256, (2, 5, 6, 3), dtype=torch.uint8)
    yield "prepare_images", (bytes_, [1.0, 2.0, 3.0], [0.0, 1.0, 2.0], torch.bfloat16)
    window = ([3, 3], [2, 2], [1, 1])
    for dtype in BOTH:
        image = torch.randn(2, 8, 9, 9).to(dtype).contiguous(memory_format=torch.channels_last)
        yield "max_pool", (image, *window, False)
        pooled, offsets = OPERATORS.max_pool(image, *window, False)
        yield "max_pool_gradient", (pooled, offsets, [9, 9], *window)


def products() -> Calls:
    left, right = torch.randn(8, 20).bfloat16(), torch.randn(48, 20).t()
    for bias, wide in ((None, False), (torch.randn(48), True)):
        yield "mixed_product", (left, right, bias, wide)
    yield "exact_products", (torch.randn(3, 8, 20).bfloat16(), torch.randn(3, 16, 20).bfloat16().mT)
    yield "dropout_mask", (torch.tensor([7, 8]), 1, [3, 5], 0.5)


def optimizer_steps() -> Calls:
    for case in CASES:
        if case.name not in ("sgd", "rmsprop momentum", "adamw"):
            continue
        weights: list[Tensor] = [torch.randn(5), torch.randn(3, 2)]
        present = [k for k, there in enumerate(case.present) if there]
        states = [torch.rand_like(w) + 1 for _ in present for w in weights]
        steps = [torch.ones(()) for _ in weights] if case.rule in COUNTS_STEPS else []
        lists = (weights, [torch.randn_like(w) for w in weights], states, present, steps)
        scalars = (torch.tensor(2.0), torch.tensor(0.0), None, None)
        numbers = ([0.9] * len(NUMBERS), [False] * len(SWITCHES))
        yield "optimizer_step_", (case.rule, *lists, *scalars, *numbers)


@pytest.mark.slow
@pytest.mark.parametrize(
    "calls", [losses, gradients, batch_norms, images, products, optimizer_steps]
)
def test_opcheck(calls: Callable[[], Calls]) -> None:
    torch.manual_seed(0)
    for name, arguments in calls():
        torch.library.opcheck(getattr(OPERATORS, name).default, arguments)
