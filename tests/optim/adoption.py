"""Trainings with an adopted optimizer and with its untouched twin."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

OPTIONS: dict[str, dict[str, Any]] = {
    "Adam": {"weight_decay": 0.01},
    "AdamW": {},
    "SGD": {"momentum": 0.9},
    "RMSprop": {"momentum": 0.5},
    "RAdam": {},
    "Adagrad": {"lr_decay": 0.01, "weight_decay": 0.01},
}
every_class = pytest.mark.parametrize("name", OPTIONS)
SAID = {name: f"{name} takes its steps in one pass over memory on the CPU" for name in OPTIONS} | {
    "Adagrad": "Adagrad takes torch's fused form on cpu"
}


def network(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(3)
    layers = nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(144, 5),
    )
    return layers.to(dtype).to(memory_format=torch.channels_last)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: range,
    *after: Any,
    closure: bool = False,
) -> list[float]:
    """Train, and return the losses; `after` are schedulers, stepped after every step."""
    losses = []
    dtype = next(model.parameters()).dtype
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(4, 3, 8, 8, generator=generator).to(dtype)

        def loss(inputs: Tensor = inputs) -> Tensor:
            optimizer.zero_grad()
            result = model(inputs).square().mean()
            result.backward()
            return result.detach()

        if closure:
            losses.append(float(optimizer.step(loss)))
        else:
            losses.append(float(loss()))
            optimizer.step()
        for scheduler in after:
            scheduler.step(
                *([losses[-1]] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else [])
            )
    return losses


def make(name: str, model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return getattr(torch.optim, name)(
        model.parameters(), **{"lr": 0.01, **OPTIONS[name], **options}
    )


def assert_alike(
    ours: torch.optim.Optimizer, theirs: torch.optim.Optimizer, bound: float = 1e-5
) -> None:
    mine, torchs = ours.state_dict(), theirs.state_dict()
    assert mine["param_groups"] == torchs["param_groups"]
    assert mine["state"].keys() == torchs["state"].keys()
    for key, state in torchs["state"].items():
        assert mine["state"][key].keys() == state.keys()
        torch.testing.assert_close(mine["state"][key], state, rtol=10 * bound, atol=bound)
    for one, other in zip(ours.param_groups, theirs.param_groups, strict=True):
        torch.testing.assert_close(one["params"], other["params"], rtol=bound, atol=bound)
