"""The graph pass that puts our max pooling in the place of torch's: what it takes, and a step."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from written_operators import compiled_with

from gallery_lib.compiler.backend import compile_model
from gallery_lib.compiler.passes.max_pooling import MaxPooling
from gallery_lib.config import Compiler
from gallery_lib.kernels.runtime import operators

LAST = torch.channels_last


def rewritten(function: Any, image: torch.Tensor) -> int:
    """Return how many of our operators the pass writes into the function's graph."""
    compiled, counts = compiled_with(MaxPooling(), torch.ops.gallery.max_pool.default, function)
    result, expected = compiled(image), function(image)
    assert torch.equal(result, expected)
    return sum(counts)


@pytest.mark.parametrize(
    "function",
    [
        nn.MaxPool2d(3, 2, 1),
        nn.MaxPool2d(2),
        nn.MaxPool2d((3, 2), (2, 1), (1, 0), ceil_mode=True),
        lambda x: functional.max_pool2d(x, 2),
        lambda x: functional.max_pool2d(x, kernel_size=(2,), stride=[2], padding=0),
        lambda x: torch.max_pool2d(x, [2, 3], padding=[1]),
    ],
)
def test_max_pooling_in_channels_last_is_taken(function):
    assert rewritten(function, torch.randn(2, 8, 12, 12).to(memory_format=LAST)) == 1


@pytest.mark.parametrize(
    ("function", "image"),
    [
        (nn.MaxPool2d(2), torch.randn(2, 8, 12, 12)),  # contiguous
        (nn.MaxPool2d(2), torch.randn(8, 12, 12)),  # one image
        (nn.MaxPool2d(2), torch.randn(2, 8, 12, 12).to(torch.float64, memory_format=LAST)),
        (nn.MaxPool2d(2, dilation=2), torch.randn(2, 8, 12, 12).to(memory_format=LAST)),
        (nn.MaxPool2d(17), torch.randn(2, 8, 20, 20).to(memory_format=LAST)),
        (
            lambda x: functional.max_pool2d(x, 2, return_indices=True)[0],
            torch.randn(2, 8, 12, 12).to(memory_format=LAST),
        ),
        (nn.AdaptiveMaxPool2d(3), torch.randn(2, 8, 12, 12).to(memory_format=LAST)),
    ],
)
def test_other_pooling_is_left_to_the_compiler(function, image):
    assert rewritten(function, image) == 0


def trained(
    model: nn.Module, ours: bool | None, image: torch.Tensor, dtype: torch.dtype | None
) -> Any:
    """Return the result and all gradients of a step: compiled, or where `ours` is None, eager."""
    model = copy.deepcopy(model)
    if ours is not None:
        compile_model(model, Compiler(max_pooling=ours), torch.device("cpu"), channels_last=True)
    image = image.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
        result = model(image)
    result.float().square().sum().backward()
    return [result, image.grad, *(weight.grad for weight in model.parameters())]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_compiled_step_has_torchs_gradients(dtype):
    torch._dynamo.reset()  # else sizes may count as dynamic, after other tests
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 24, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(24, 8, 3))
    model = nn.Sequential(*layers, nn.MaxPool2d(2, ceil_mode=True)).to(memory_format=LAST)
    image = torch.randn(4, 3, 19, 19).to(memory_format=LAST)
    before = operators.counts()
    ours = trained(model, True, image, dtype)
    calls = operators.counts() - before
    assert calls["max_pool", operators.KERNEL] == 2
    assert calls["max_pool_gradient", operators.KERNEL] == 2
    # Code that computes bfloat16 in fp32 rounds less than eager mode, which this is held to, too.
    others = [trained(model, way, image, dtype) for way in (False, None)]
    double = trained(model.double(), None, image.double(), None)
    for one, *plain, exact in zip(ours, *others, double, strict=True):
        off, *others_off = (
            float((each.double() - exact).norm() / exact.norm()) for each in (one, *plain)
        )
        assert off <= 1.5 * max(others_off) + 1e-6
    assert not operators.counts()["max_pool", operators.PLAIN_TORCH]
