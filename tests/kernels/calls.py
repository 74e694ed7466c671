"""Calls of every operator, with arguments for which all of its implementations are written.

One table for what holds for each of them: promises to the compiler, the order of threads, plain
torch in place of C++, and the processor that the C++ is built for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from cuda_on_host import draw
from kernels.optimizer_cases import BY_NAME, step_of
from kernels.ways import in_plain_form, tensors_in
from torch import Tensor
from torch.utils._pytree import tree_map_only

from gallery_lib.kernels import (  # noqa: F401  some only register operators
    batch_norm,
    compression,
    cross_entropy,
    dropout_mask,
    gradient_statistics,
    image_batch,
    max_pool,
    mixed_product,
    winograd,
)
from gallery_lib.kernels.runtime.launch import CHUNK

OPERATORS = torch.ops.gallery
BOTH = (torch.float32, torch.bfloat16)
Calls = Iterator[tuple[str, tuple[Any, ...]]]


def losses() -> Calls:
    for dtype in BOTH:
        for classes in (5, 16, 1025, 4099):
            logits = draw.values(4 * classes, dtype, classes).view(4, classes)
            labels, rows = torch.tensor([1, -100, 4, 0]), torch.rand(2, 4)
            yield "cross_entropy_gradient", (logits.clone(), labels, 0.1, -100, *rows.unbind())
            yield "cross_entropy_rows", (logits.requires_grad_(), labels, 0.1, -100)


def norms_of_gradients() -> Calls:
    values = draw.values(20_001, torch.float32, 1), draw.values(999, torch.bfloat16, 2)
    yield "gradient_statistics", ([*values, torch.empty(0)],)


def packing() -> Calls:
    for size in (1, 1023, 5000):
        gradient, error = (draw.values(size, torch.float32, seed) for seed in range(2))
        out = torch.zeros(compression.packed_bytes(size), dtype=torch.uint8)  # gaps stay
        yield "pack_gradient_", (gradient, error, out)
        yield "pack_gradient_", (gradient, None, out)
        packed = torch.stack([compression.pack(v, out=out.clone()) for v in (gradient, error)])
        yield "accumulate_gradient_", (gradient, packed, 0.5, True)


def image(dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    values = draw.values(torch.Size(shape).numel(), dtype, seed).view(shape)
    return values.contiguous(memory_format=torch.channels_last)


def batch_norms() -> Calls:
    for dtype in BOTH:
        for shape in ((2, 3, 9, 7), (2, 37, 9, 7), (7, 16, 40, 25)):
            x, channels = image(dtype, *shape), (torch.rand(4, shape[1]) + 0.1).unbind()
            running = torch.zeros(shape[1]), torch.ones(shape[1])
            yield "batch_norm_statistics_", (x, *running, 0.1, 1e-5)
            yield "batch_norm_relu_gradient", (image(dtype, *shape, seed=1), x, *channels)
            affine = [each.clone().requires_grad_() for each in channels[2:]]
            yield "batch_norm_relu", (x.clone().requires_grad_(), *channels[:2], *affine)


def images() -> Calls:
    bytes_ = torch.randint(0, 256, (2, 5, 6, 3), dtype=torch.uint8)
    yield "prepare_images", (bytes_, [1.0, 2.0, 3.0], [0.0, 1.0, 2.0], torch.bfloat16)


def pooling() -> Calls:
    for window in (([3, 3], [2, 2], [1, 1]), ([3, 2], [2, 1], [1, 0])):
        for dtype in BOTH:
            for channels in (3, 16, 37):
                given = image(dtype, 2, channels, 9, 7)
                yield "max_pool", (given, *window, False)
                pooled, offsets = OPERATORS.max_pool(given, *window, False)
                yield "max_pool_gradient", (pooled, offsets, [9, 7], *window)


def convolutions() -> Calls:
    for size, out in (((2, 32, 9, 7), 80), ((1, 48, 4, 5), 16)):
        yield "winograd", (torch.randn(size), torch.randn(out, size[1], 3, 3), False)
        yield "winograd", (torch.randn(size), torch.randn(size[1], out, 3, 3), True)
        gradient = torch.randn(size[0], out, *size[2:])
        yield "winograd_gradient", (gradient, torch.randn(size), torch.randn(out, size[1], 3, 3))


def masks() -> Calls:
    for seed in (0, -3, 2**62 + 1):
        yield "dropout_mask", (torch.tensor([0, seed]), 1, [3, 1001], 0.3)


def products() -> Calls:
    left, right = torch.randn(37, 2051).bfloat16(), torch.randn(333, 2051).t()
    for bias, wide in ((None, False), (torch.randn(333), True)):
        yield "mixed_product", (left, right, bias, wide)
    yield "exact_products", (torch.randn(3, 8, 20).bfloat16(), torch.randn(3, 16, 20).bfloat16().mT)


def optimizer_steps() -> Calls:
    for name in ("sgd", "rmsprop momentum", "adamw"):
        yield "optimizer_step_", step_of(BY_NAME[name], [5, 6], gradient_scale=2.0, found_inf=0.0)
    # Norms are sums over several blocks.
    yield "optimizer_step_", step_of(BY_NAME["lamb"], [2 * CHUNK + 3])


IN_CPP = (losses, packing, batch_norms, pooling, convolutions, masks)
"""Operators with C++ for every processor."""
IN_CUDA = (losses, packing, batch_norms, norms_of_gradients, images, optimizer_steps)
EVERY = (*IN_CUDA, pooling, convolutions, masks, products)


def results(calls: Callable[[], Calls], call: Callable[..., Any] = in_plain_form) -> Any:
    """Return, for each call, its name and all tensors that it returned or may have changed."""
    torch.manual_seed(0)
    found = []
    for name, arguments in calls():
        given = tree_map_only(Tensor, lambda v: v.detach().clone(), arguments)
        found.append((name, tensors_in((call(name, *given), given))))
    return found
