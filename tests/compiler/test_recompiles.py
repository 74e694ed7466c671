"""Compiled code that is compiled again: what is said, once, and what the results have."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from gallery_lib import accelerate
from gallery_lib.acceleration import techniques
from gallery_lib.compiler import recompiles
from gallery_lib.config import Config

pytestmark = pytest.mark.slow


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.word = ""

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * len(self.word + "a")


@pytest.fixture(autouse=True)
def _a_watch_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    torch._dynamo.reset()
    monkeypatch.setattr(recompiles, "_watch", None)
    yield
    torch._dynamo.reset()


def _accelerated() -> Model:
    config = Config()
    config.compiler.backend = "aot_eager"  # what is generated is not the point
    model: Model = accelerate(Model(), config)
    return model


def test_shapes_that_change_are_named_once_with_the_guard_and_a_remedy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = _accelerated()
    for size in range(3, 9):  # the second shape compiles for all
        model(torch.ones(size, 4)).sum().backward()
    assert "compiled again" not in capsys.readouterr().err
    assert "recompilations" not in techniques(model)
    for width in (True, False, True):
        model.linear.weight.requires_grad_(width)
        model(torch.ones(3, 4)).sum().backward()
    said = capsys.readouterr().err
    assert said.count("compiled again") == 1
    assert "requires_grad" in said and "toggle requires_grad around whole passes" in said
    assert techniques(model)["recompilations"].startswith("compiled again 2 times (")


def test_torchs_limit_is_said_with_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    model = _accelerated()
    for length in range(12):
        model.word = "a" * length
        model(torch.ones(3, 4)).sum().backward()
    said = capsys.readouterr().err
    assert said.count("Model: torch's limit of graphs is reached, and new inputs run eagerly") == 1
    assert "test_recompiles.py:" in techniques(model)["recompilations"]
    assert "a Python value that changes" in techniques(model)["recompilations"]
