"""Models that accelerate() compiles, or that the user compiles before or afterwards."""

import copy

import pytest
import torch
from small_models import image_model
from torch import Tensor, nn

from gallery_lib import Config, accelerate
from gallery_lib.acceleration import techniques


def test_a_compiled_model_loses_its_wrapper_and_so_its_prefixes():
    with pytest.warns(UserWarning, match="torch.compile's wrapper is taken off"):
        ours, _ = accelerate(torch.compile(nn.Linear(3, 1)), None, Config.plain())
    assert list(ours.state_dict()) == ["weight", "bias"]


def test_a_copy_is_a_plain_model_that_may_be_accelerated_itself():
    once, _ = accelerate(image_model(), None, Config.plain())
    twice, _ = accelerate(copy.deepcopy(once), None, Config.plain())
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(once(x), twice(x))


def test_a_model_without_convolutions_that_the_user_compiles_afterwards_is_one_graph():
    ours, _ = accelerate(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)), None, Config.plain())
    x = torch.randn(2, 3)
    torch.testing.assert_close(torch.compile(ours, backend="eager", fullgraph=True)(x), ours(x))


@pytest.mark.slow
def test_hooks_that_come_and_go_after_the_first_step_run_in_a_compiled_model():
    network, _ = accelerate(
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)), None, Config()
    )
    x = torch.randn(3, 4)
    before = network(x)
    before.sum().backward()
    calls: list[int] = []
    handle = network[0].register_forward_hook(lambda *inputs: calls.append(1) or inputs[2] * 0)
    changed = network(x)
    assert len(calls) == 1 and torch.allclose(changed, network[2].bias.expand(3, 1))
    handle.remove()
    assert torch.allclose(network(x), before) and len(calls) == 1


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
    ours = accelerate(copy.deepcopy(plain))
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
    assert "test_compiled_models.py:" in breaks
    assert "Branching is not one graph" in said
