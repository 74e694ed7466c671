"""accelerate() on other people's models: the same loss and gradients, and graph breaks reported."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from gallery_lib import accelerate
from gallery_lib.acceleration import techniques


class Branching(nn.Module):
    """Model that takes another layer when the values say so, so no single graph can hold it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.one(x)) if x.sum() > 0 else torch.relu(self.other(x))


@pytest.mark.slow
def test_a_model_with_a_graph_break_computes_the_same_gradients_and_says_so(capfd):
    torch.manual_seed(0)
    plain, x = Branching(), torch.randn(4, 8).abs()
    ours, _ = accelerate(copy.deepcopy(plain))
    losses = [(model(x) + model(-x)).sum() for model in (plain, ours)]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-6)
    for loss in losses:
        loss.backward()
    for (name, mine), theirs in zip(ours.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-5, msg=name)
    assert list(ours.state_dict()) == list(plain.state_dict())
    said = capfd.readouterr().err
    assert "compiling Branching; later starts take it from the cache" in said
    breaks = techniques(ours)["graph breaks"]
    assert breaks.startswith("1: ") and "ata-dependent" in breaks
    assert "Branching is not one graph" in said
