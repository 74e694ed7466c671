"""All graph passes in one compiled model: what each writes, and values as exact as torch's."""

import copy
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._functorch import config as functorch_config
from written_operators import CPU, assert_as_exact

from gallery_lib.compiler import passes
from gallery_lib.compiler.backend import compile_model
from gallery_lib.compiler.passes import large_batch_norms, mixed_products
from gallery_lib.compiler.passes.graph_pass import Pass
from gallery_lib.compiler.passes.mixed_products import Limits
from gallery_lib.config import Compiler

OPTIONS = {one.option: one for one in passes.ORDER if one.option}
WRITTEN = {
    "whole_upsampling": {"upsample", "upsample_backward"},
    "max_pooling": {"max_pool", "max_pool_gradient"},
    "large_batch_norms": {
        "batch_norm_statistics_", "batch_norm_relu", "batch_norm_relu_gradient",
    },
    "mixed_products": {"mixed_product"},
}  # fmt: skip
"""Operators of ours that a pass writes, by its option."""
ATTENTION, CONVOLUTION = "aten::_scaled_dot_product_flash_attention", "aten::convolution"


class Model(nn.Module):
    """Something for every pass: [N, 3, 11, 11] → [N, 24]."""

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.Conv2d(3, 40, 3, bias=False), nn.BatchNorm2d(40), nn.ReLU())
        self.stem = nn.Sequential(*layers, nn.MaxPool2d(3, 2, 1))
        self.deep = nn.Conv2d(40, 32, 3, padding=1)
        self.inward, self.outward = nn.Linear(32, 96), nn.Linear(32, 24)

    def forward(self, x: Tensor) -> Tensor:
        image = F.relu(self.deep(self.stem(x)))
        large = F.interpolate(image, scale_factor=2.0, mode="bilinear")
        tokens = self.inward(large.flatten(2).transpose(1, 2))
        heads = tokens.unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*heads)
        return self.outward(attended.transpose(1, 2).flatten(2).mean(1))


def step(model: Model, x: Tensor, dtype: torch.dtype) -> list[Tensor]:
    x = x.to(dtype, copy=True).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.float32):
        result = model(x)
    result.square().sum().backward()
    buffers = [buffer for buffer in model.buffers() if buffer.dim()]
    return [result.detach(), x.grad, *(p.grad for p in model.parameters()), *buffers]  # type: ignore[list-item]


def trained(model: Model, x: Tensor, options: Compiler) -> tuple[list[Tensor], Counter[str]]:
    """Return what a first step gives, and the operators that a later one calls."""
    torch._dynamo.reset()  # else sizes may count as dynamic, after other tests
    model = copy.deepcopy(model)
    compile_model(model, options, CPU, channels_last=True)
    values = [value.clone() for value in step(model, x, torch.float32)]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step(model, x, torch.float32)
    return values, Counter({event.key: event.count for event in profile.key_averages()})


@pytest.mark.slow
def test_a_compiled_model_uses_every_pass_that_is_of_use_here_unless_told_otherwise(monkeypatch):
    monkeypatch.setattr(large_batch_norms, "SMALLEST_BYTES", 0)
    monkeypatch.setattr(mixed_products, "limits", lambda: Limits(512, 1024, 256))
    torch.manual_seed(0)
    model, x = Model(), torch.randn(4, 3, 11, 11)
    with functorch_config.patch(enable_autograd_cache=False):  # it does not know the limits
        ours, called = trained(model, x, Compiler())
        plain, without = trained(model, x, Compiler(without=tuple(OPTIONS)))
    assert_as_exact(ours, plain, step(model.double(), x, torch.float64), factor=1.5, more=2e-3)
    assert not [name for name in without if name.startswith("gallery::")]
    for option, names in WRITTEN.items():
        applied = OPTIONS[option].reason_not_applied() is None
        assert {called[f"gallery::{name}"] > 0 for name in names} == {applied}, option
    calls = [sum(c for name, c in found.items() if name.startswith(ATTENTION))
             for found in (called, without)]  # fmt: skip
    assert calls == [0, 2]
    assert (called[CONVOLUTION] < without[CONVOLUTION]) == (
        OPTIONS["small_convolutions"].reason_not_applied() is None
    )


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_leaves_out_its_pass_and_no_other(option):
    def chosen(options: Compiler) -> set[Pass]:
        found = passes.choose(options, CPU, channels_last=True)
        return {one for stage in found.values() for one in stage.passes}

    left_out = chosen(Compiler()) - chosen(Compiler(without=(option,)))
    assert left_out == {OPTIONS[option]} & chosen(Compiler())
