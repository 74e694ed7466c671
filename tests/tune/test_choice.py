"""The tuner uses the fastest candidate that computes the same.

A slow, a wrong and a crashing candidate are dropped with the reason.
"""

import json
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from gallery_lib import accelerate
from gallery_lib.acceleration import techniques
from gallery_lib.config import Compiler, Config
from gallery_lib.tune import choice

SLEEP_SECONDS = 0.02


class Sleepy(nn.Module):
    """A small network whose forward pass waits, as a model would that has something to gain."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.dropout = nn.Linear(8, 8), nn.Linear(8, 3), nn.Dropout(0.5)
        self.seconds = SLEEP_SECONDS

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.seconds)
        return self.other(self.dropout(torch.tanh(self.one(x))))


def _faster(model: nn.Module, *_: object) -> str:
    model.seconds = 0.0
    return "does not wait"


def _slower(model: nn.Module, *_: object) -> str:
    model.seconds = 2 * SLEEP_SECONDS
    return "waits twice as long"


def _wrong(model: nn.Module, *_: object) -> str:
    model.one.weight.register_hook(lambda gradient: gradient * 1.01)
    return f"{_faster(model)}, and scales a gradient"


def _crashing(model: nn.Module, *_: object) -> str:
    raise torch.OutOfMemoryError("planted: no memory left")


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Plant the backends, and return the folder in which choices are kept."""
    monkeypatch.setenv("GALLERY_CACHE_DIR", str(tmp_path / "cache"))
    planted = {"faster": _faster, "slower": _slower, "wrong": _wrong, "crashing": _crashing}

    def compile_model(model: nn.Module, options: Compiler, *_: object, **__: object) -> str:
        return planted[options.backend](model)

    monkeypatch.setattr(choice, "compile_model", compile_model)
    return tmp_path / "cache" / "tuning"


def tuned(name: str) -> nn.Module:
    config = Config()
    config.tune, config.compiler.backend = True, name
    torch.manual_seed(0)
    return accelerate(Sleepy(), None, config)[0]


def losses(model: nn.Module, steps: int = 4) -> list[float]:
    """Return the loss curve of a few steps with dropout, which draws random numbers."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    curve = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        curve.append(float(loss.detach()))
    return curve


@pytest.mark.parametrize(
    ("planted", "used", "reason"),
    [
        ("faster", "faster", "forward + backward"),
        ("slower", "eager", "slower"),
        ("wrong", "eager", "dropped: other gradients, first of all in one.weight"),
        ("crashing", "eager", "OutOfMemoryError: planted"),
    ],
)
def test_a_faster_candidate_is_used_a_slow_a_wrong_and_a_crashing_one_rejected_with_the_reason(
    planted: str, used: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    plain, model = Sleepy(), tuned(planted)
    assert losses(model) == losses(plain)  # tuning leaves weights, gradients and random state
    assert list(model.state_dict()) == list(plain.state_dict())
    assert model.seconds == (0.0 if used == "faster" else SLEEP_SECONDS)
    assert techniques(model)["tuning"] == f"{used}, of 2 candidates"
    said = capsys.readouterr().err
    assert reason in said and f"Sleepy runs as `{used}`" in said


def test_evaluation_before_the_first_step_does_not_tune() -> None:
    model = tuned("faster")
    model.eval()(torch.randn(2, 8))
    with torch.no_grad():
        model.train()(torch.randn(2, 8))
    assert "tuning" not in techniques(model)
    losses(model, 1)
    assert "tuning" in techniques(model)


def test_a_choice_is_kept_and_used_again_but_for_another_shape_of_input(
    kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    losses(tuned("faster"))
    assert len(list(kept.glob("*.json"))) == 1
    losses(model := tuned("faster"))
    assert techniques(model)["tuning"].endswith("(kept choice)")
    assert model.seconds == 0.0 and "runs as `faster` (kept" in capsys.readouterr().err
    tuned("faster")(torch.randn(5, 8)).sum().backward()
    assert len(list(kept.glob("*.json"))) == 2


def test_a_choice_that_cannot_be_used_is_made_anew(kept: Path) -> None:
    losses(tuned("faster"))
    (path,) = kept.glob("*.json")
    values = json.loads(path.read_text())
    for text in ("{", json.dumps({**values, "chosen": "fastest"})):
        path.write_text(text)
        losses(model := tuned("faster"))
        assert "kept" not in techniques(model)["tuning"]
        assert json.loads(path.read_text()).keys() == values.keys()
