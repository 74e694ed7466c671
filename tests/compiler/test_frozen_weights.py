"""Layers that are unfrozen between steps of a compiled model are trained, as in eager mode."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from gallery_lib import accelerate
from gallery_lib.compiler import backend
from gallery_lib.compiler.backend import compile_calls


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.second(self.first(x).relu())


@pytest.fixture(autouse=True)
def traced(monkeypatch):
    """Let the compiler trace, and run its graphs with eager's operators."""

    def compiled(model, options, device, channels_last):
        compile_calls([model], backend="aot_eager")
        return "aot_eager"

    monkeypatch.setitem(backend._BACKENDS, "inductor", compiled)
    torch._dynamo.reset()


@pytest.mark.parametrize(
    "build",
    [Own, lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))],
    ids=["a class of one's own", "Sequential"],
)
def test_a_layer_that_is_frozen_and_unfrozen_has_eagers_gradients(build):
    torch.manual_seed(0)
    plain = build()
    ours, *_ = accelerate(copy.deepcopy(plain))
    for trained in (False, True, False, True):
        for _ in range(2):
            x = torch.randn(3, 4)
            gradients = []
            for model in (plain, ours):
                next(model.children()).requires_grad_(trained)
                model.zero_grad()
                model(x).square().mean().backward()
                gradients.append([p.grad for p in model.parameters()])
            torch.testing.assert_close(gradients[1], gradients[0])
