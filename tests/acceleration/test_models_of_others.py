"""accelerate() on other people's models: the same loss and gradients, and graph breaks reported."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gallery_lib import accelerate
from gallery_lib.acceleration import techniques


def convnext() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    """Return torchvision's ConvNeXt with two narrow stages."""
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    images, labels = torch.randn(2, 3, 32, 32), torch.tensor([1, 2])
    model = ConvNeXt(
        [CNBlockConfig(16, 32, 1), CNBlockConfig(32, None, 1)],
        num_classes=10,
        stochastic_depth_prob=0.0,
        layer_scale=1.0,
    )
    return model, lambda network: F.cross_entropy(network(images), labels)


class Branching(nn.Module):
    """Model that takes another layer when the values say so, so no single graph can hold it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.one(x)) if x.sum() > 0 else torch.relu(self.other(x))


def branching() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    x = torch.randn(4, 8).abs()
    return Branching(), lambda model: (model(x) + model(-x)).sum()


@pytest.mark.slow
@pytest.mark.parametrize("build", [convnext, branching])
def test_an_accelerated_model_computes_the_same_gradients(build, capfd):
    torch._dynamo.reset()  # else sizes may count as dynamic, after other tests
    torch.manual_seed(0)
    plain, loss_of = build()
    keys = list(plain.state_dict())
    accelerated, _ = accelerate(copy.deepcopy(plain))
    losses = [loss_of(model) for model in (plain, accelerated)]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-6)
    for loss in losses:
        loss.backward()
    for (name, ours), theirs in zip(
        accelerated.named_parameters(), plain.parameters(), strict=True
    ):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5, msg=name)
    assert list(accelerated.state_dict()) == keys
    said = capfd.readouterr().err
    assert f"compiling {type(plain).__name__}; later starts take it from the cache" in said
    breaks = techniques(accelerated).get("graph breaks")
    if build is branching:
        assert breaks and breaks.startswith("1: ") and "ata-dependent" in breaks
        assert "Branching is not one graph" in said
    if build is convnext:
        assert breaks is None and "not one graph" not in said
