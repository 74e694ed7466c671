"""The graph pass that lets our batch norm add up gradients: what it rewrites, and the same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from gallery_lib.compiler.passes.two_gradients import TwoGradients

OPERATORS = torch.ops.gallery
OF_TWO = OPERATORS.batch_norm_relu_sums_of_two.default


def tensors() -> list[torch.Tensor]:
    torch.manual_seed(0)
    batches = [torch.randn(2, 20, 5, 6).bfloat16() for _ in range(4)]
    batches = [each.to(memory_format=torch.channels_last) for each in batches]
    return [*batches, *torch.rand(4, 20).unbind()]


def rewritten(function: Any) -> tuple[fx.GraphModule, int]:
    """Return the graph after the pass, and how many operators of two gradients it has."""
    module = make_fx(function, tracing_mode="fake")(*tensors())
    TwoGradients()(module.graph)
    module.graph.lint()
    module.recompile()
    return module, len(module.graph.find_nodes(op="call_function", target=OF_TWO))


def test_the_sum_of_two_gradients_goes_into_the_operator_and_no_bit_changes():
    def function(one, other, x, result, *c):
        return OPERATORS.batch_norm_relu_sums(one + other, x, result, *c)

    module, times = rewritten(function)
    assert times == 1
    assert not module.graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor)
    for ours, plain in zip(module(*tensors()), function(*tensors()), strict=True):
        assert torch.equal(ours, plain)


def with_another_reader(one, other, x, result, *c):
    total = one + other
    return total, OPERATORS.batch_norm_relu_sums(total, x, result, *c)


def without_a_residual(one, other, x, result, *c):
    return OPERATORS.batch_norm_relu_sums(one + other, x, None, *c)


def of_another_shape(one, other, x, result, *c):
    return OPERATORS.batch_norm_relu_sums(one + other[:, :, :1, :1], x, result, *c)


def of_a_number(one, other, x, result, *c):
    return OPERATORS.batch_norm_relu_sums(one + 1, x, result, *c)


def with_a_factor(one, other, x, result, *c):
    return OPERATORS.batch_norm_relu_sums(torch.add(one, other, alpha=2), x, result, *c)


@pytest.mark.parametrize(
    "function",
    [with_another_reader, without_a_residual, of_another_shape, of_a_number, with_a_factor],
)
def test_other_gradients_are_left_as_they_are(function):
    assert rewritten(function)[1] == 0
