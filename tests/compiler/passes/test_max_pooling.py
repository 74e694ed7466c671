"""The graph pass that puts our max pooling in the place of torch's: what it takes, and a step."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from written_operators import CPU, compiled_with

from gallery_lib.compiler.backend import compile_model
from gallery_lib.compiler.passes.max_pooling import rewrite
from gallery_lib.config import Compiler
from gallery_lib.kernels.runtime import operators
from gallery_lib.system import hardware

LAST = torch.channels_last


def image(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*sizes).to(dtype, memory_format=LAST)


@pytest.mark.parametrize(
    ("function", "x", "taken"),
    [
        (nn.MaxPool2d(3, 2, 1), image(2, 8, 12, 12), 1),
        (nn.MaxPool2d(2), image(2, 8, 12, 12), 1),
        (nn.MaxPool2d((3, 2), (2, 1), (1, 0), ceil_mode=True), image(2, 8, 12, 12), 1),
        (lambda x: functional.max_pool2d(x, 2), image(2, 8, 12, 12), 1),
        (
            lambda x: functional.max_pool2d(x, kernel_size=(2,), stride=[2], padding=0),
            image(2, 8, 12, 12),
            1,
        ),
        (lambda x: torch.max_pool2d(x, [2, 3], padding=[1]), image(2, 8, 12, 12), 1),
        (nn.MaxPool2d(2), torch.randn(2, 8, 12, 12), 0),  # contiguous
        (nn.MaxPool2d(2), torch.randn(8, 12, 12), 0),  # one image
        (nn.MaxPool2d(2), image(2, 8, 12, 12, dtype=torch.float64), 0),
        (nn.MaxPool2d(2, dilation=2), image(2, 8, 12, 12), 0),
        (nn.MaxPool2d(17), image(2, 8, 20, 20), 0),
        (lambda x: functional.max_pool2d(x, 2, return_indices=True)[0], image(2, 8, 12, 12), 0),
        (nn.AdaptiveMaxPool2d(3), image(2, 8, 12, 12), 0),
    ],
)
def test_max_pooling_in_channels_last_is_taken_and_other_is_not(function, x, taken):
    compiled, counts = compiled_with(rewrite, torch.ops.gallery.max_pool.default, function)
    assert torch.equal(compiled(x), function(x))
    assert sum(counts) == taken


def trained(
    model: nn.Module, ours: bool | None, image: torch.Tensor, dtype: torch.dtype | None
) -> Any:
    """Return the result and all gradients of a step: compiled, or where `ours` is None, eager."""
    model = copy.deepcopy(model)
    if ours is not None:
        compile_model(
            model, Compiler(without=() if ours else ("max_pooling",)), CPU, channels_last=True
        )
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
    x = image(4, 3, 19, 19)
    before = operators.counts()
    ours = trained(model, True, x, dtype)
    calls = operators.counts() - before
    assert calls["max_pool", operators.KERNEL] == 2
    assert calls["max_pool_gradient", operators.KERNEL] == 2
    ways: list[bool | None] = [False]
    if not hardware.computes_in_bf16("cpu"):
        ways.append(None)  # compiled code computes bfloat16 in fp32 there, and rounds less
    others = [trained(model, way, x, dtype) for way in ways]
    double = trained(model.double(), None, x.double(), None)
    for one, *plain, exact in zip(ours, *others, double, strict=True):
        off, *others_off = (
            float((each.double() - exact).norm() / exact.norm()) for each in (one, *plain)
        )
        assert off <= 1.5 * max(others_off) + 1e-6
    assert not operators.counts()["max_pool", operators.PLAIN_TORCH]
