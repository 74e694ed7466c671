"""A compiled model's backward pass with `retain_graph=True`, whatever came before it."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch._functorch import config as functorch_config

from gallery_lib.compiler import backend
from gallery_lib.compiler.backend import compile_model
from gallery_lib.config import Compiler

pytestmark = pytest.mark.slow


def plain_step(model: nn.Module, x: Tensor) -> None:
    model(x).square().sum().backward()


def step_of_two_backward_passes(model: nn.Module, x: Tensor) -> None:
    result = model(x)
    result.square().sum().backward(retain_graph=True)
    result.sin().sum().backward()


def compiled(model: nn.Module) -> nn.Module:
    torch._dynamo.reset()
    model = copy.deepcopy(model)
    compile_model(model, Compiler(), torch.device("cpu"))
    return model


def model_of(channels: int) -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, channels, 3), nn.BatchNorm2d(channels), nn.ReLU())
    return nn.Sequential(*layers, nn.Conv2d(channels, 8, 3)).to(memory_format=torch.channels_last)


def images() -> Tensor:
    return torch.randn(4, 3, 9, 9).to(memory_format=torch.channels_last)


def check(ours: nn.Module, plain: nn.Module) -> None:
    """Take steps of two backward passes, and hold their gradients against float64."""
    x, exact = images(), copy.deepcopy(plain).double()
    step_of_two_backward_passes(exact, x.double())
    plain_step(ours, x)
    for _ in range(2):
        ours.zero_grad()
        step_of_two_backward_passes(ours, x)
        for weight, right in zip(ours.parameters(), exact.parameters(), strict=True):
            assert weight.grad is not None and right.grad is not None
            torch.testing.assert_close(weight.grad, right.grad.float(), atol=1e-4, rtol=1e-4)


def test_a_graph_is_kept_after_steps_that_did_not_keep_theirs():
    model = model_of(channels=8)
    for _ in range(2):  # the second time compiled code comes from the cache
        check(compiled(model), model)


def test_code_that_writes_over_what_is_to_be_kept_does_not_come_from_the_cache(monkeypatch):
    model = model_of(channels=10)  # of which no other test compiles code
    with monkeypatch.context() as before:
        before.setattr(backend, "allow_kept_graphs", lambda: None)
        before.setattr(functorch_config, "donated_buffer", True)
        plain_step(compiled(model), images())
    check(compiled(model), model)
