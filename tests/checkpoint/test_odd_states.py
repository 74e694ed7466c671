"""States beyond one plain model and numbers of Python: gone on with exactly, or said by name."""

import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gallery_lib.checkpoint import Checkpoint


class Buffer(nn.Module):
    def __init__(self, first: Tensor, following: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.following = nn.Linear(3, 2), following
        self.register_buffer("odd", first)
        self.odd: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.odd = self.following(self.odd)
        return self.layer(x) * self.odd.to_dense().to(torch.complex64).real.sum()


class Computed(nn.Module):
    """Its state dict has a tensor that is nobody's memory, and numpy's numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale, self.calls = nn.Linear(3, 2), 1.0, np.int64(0)

    def forward(self, x: Tensor) -> Tensor:
        self.scale, self.calls = self.scale + 0.5, self.calls + np.int64(1)
        return self.layer(x) * self.scale * float(self.calls)

    def get_extra_state(self) -> Any:
        return {"calls": self.calls}

    def set_extra_state(self, state: Any) -> None:
        self.calls = np.int64(state["calls"])

    def _save_to_state_dict(self, into: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(into, prefix, keep_vars)
        into[prefix + "scale"] = torch.tensor(self.scale)

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        self.scale = float(state.pop(prefix + "scale"))
        super()._load_from_state_dict(state, prefix, *rest)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "uint16": lambda: Buffer(torch.eye(3).to(torch.uint16), lambda b: (b.int() + 1).to(b.dtype)),
    "complex32": lambda: Buffer(torch.eye(3).to(torch.complex32), lambda b: (b * 2).to(b.dtype)),
    "sparse": lambda: Buffer(torch.eye(3).to_sparse(), lambda b: b + b),
    "not contiguous": lambda: Buffer(torch.ones(3, 4).t()[::2], lambda b: b + 1),
    "computed": Computed,
}
RATES: dict[str, Callable[[int], Any]] = {
    "numpy": lambda step: 0.05 * (1 + np.cos(step)),
    "tensor": lambda step: torch.tensor(0.1),
}


def losses(
    steps: range, model: nn.Module, optimizer: Any, rate: Any, checkpoint: Checkpoint | None
) -> list[float]:
    result = []
    for step in steps:
        optimizer.param_groups[0]["lr"] = rate(step)
        optimizer.zero_grad()
        loss = (model(torch.linspace(-1, 1, 12).reshape(4, 3)) - 1).square().mean()
        loss.backward()
        optimizer.step()
        result.append(loss.item())
        if checkpoint is not None:
            checkpoint.step()
    return result


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("model", "rate", "kind"),
    [
        *((name, "tensor", torch.optim.SGD) for name in MODELS),
        ("computed", "numpy", torch.optim.Adam),
    ],
)
def test_what_is_saved_is_gone_on_with_exactly(
    tmp_path: Path, model: str, rate: str, kind: type[torch.optim.Optimizer]
) -> None:
    def parts() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        made = MODELS[model]()
        return made, kind(made.parameters(), lr=0.1)  # type: ignore[call-arg]

    whole = losses(range(6), *parts(), RATES[rate], None)
    halves = []
    for steps in (range(3), range(3, 6)):
        net, optimizer = parts()
        checkpoint = Checkpoint(tmp_path, model=net, optimizer=optimizer, every=3)
        assert checkpoint.steps == steps.start
        halves += losses(steps, net, optimizer, RATES[rate], checkpoint)
        checkpoint.close()
    assert halves == whole
    assert len(set(whole)) == 6  # so the test can fail


def test_what_cannot_be_read_back_is_said_by_its_kind_and_leaves_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checkpoint = Checkpoint(tmp_path, model=model, optimizer=optimizer, every=1)
    for value, word in ((decimal.Decimal(1), "decimal.Decimal"), (np.zeros(2), "numpy")):
        optimizer.param_groups[0]["limit"] = value
        checkpoint.step()
        checkpoint.close()
        said = capsys.readouterr().err
        assert f"step {checkpoint.steps} could not be saved, and the training goes on: " in said
        assert word in said and list(tmp_path.iterdir()) == []
