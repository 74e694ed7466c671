"""A compiled model's backward pass with `retain_graph=True`, whatever came before it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from gallery_lib.compiler.backend import compile_model
from gallery_lib.config import Compiler


def losses(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    result = model(x)
    return functional.mse_loss(result, torch.ones_like(result)), result.square().mean()


def plain_step(model: nn.Module, x: torch.Tensor) -> None:
    sum(losses(model, x)).backward()


def step_of_two_backward_passes(model: nn.Module, x: torch.Tensor) -> None:
    first, second = losses(model, x)
    first.backward(retain_graph=True)
    second.backward()


@pytest.mark.slow
def test_a_graph_is_kept_after_steps_that_did_not_keep_theirs() -> None:
    torch.manual_seed(0)
    layers = (nn.Linear(12, 24), nn.LayerNorm(24), nn.GELU(), nn.Linear(24, 6), nn.Tanh())
    plain = nn.Sequential(*layers)
    x = torch.randn(16, 12)
    exact = copy.deepcopy(plain).double()
    step_of_two_backward_passes(exact, x.double())
    for _ in range(2):  # the second time compiled code comes from the cache
        torch._dynamo.reset()
        model = copy.deepcopy(plain)
        compile_model(model, Compiler(), torch.device("cpu"))
        plain_step(model, x)
        for _ in range(2):
            model.zero_grad()
            step_of_two_backward_passes(model, x)
            for ours, right in zip(model.parameters(), exact.parameters(), strict=True):
                assert ours.grad is not None and right.grad is not None
                torch.testing.assert_close(ours.grad, right.grad.float(), atol=1e-6, rtol=1e-4)
