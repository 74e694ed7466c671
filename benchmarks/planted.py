"""Tasks with a planted defect, to see whether a comparison finds it (see trust.py).

`SAME` is a small convolutional network whose step takes some 40 ms on two cores. `SLOW` is the same
with every step taking 5 % longer. Turns are many and short, so that the machine's load changes
little within a round. `WRONG_O0` and `WRONG_O1` are ResNet-50 with one parameter's gradient too
large by 1 % and by 10 %.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from gallery_lib import tasks
from gallery_lib.optim import OptimizerSpec
from gallery_lib.tasks.task import Splits, Task

SLOWER_BY = 0.05
WRONG_PARAMETER = "layer3.0.conv1.weight"
CLASSES = 10


class Noise(Dataset[Any]):
    """512 random images [3, 64, 64] with random labels: what is learned does not matter here."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 64, 64, generator=generator), index % CLASSES


def _build_model() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 64), (64, 128), (128, 128)):
        convolution = nn.Conv2d(before, after, 3, stride=2, padding=1)
        layers += [convolution, nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, CLASSES))


def _loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def _metrics(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, tuple[Tensor, int]]:
    return {"top1": ((model(batch[0]).argmax(1) == batch[1]).sum(), len(batch[1]))}


SAME = Task(
    name="small",
    title="Small network",
    domain="benchmark",
    batch_size=24,
    build_model=_build_model,
    data=lambda config: Splits(Noise(), Noise()),
    loss=_loss,
    metrics=_metrics,
    chance=lambda splits: {"top1": 1 / CLASSES},
    optimizer=OptimizerSpec("SGD", lr=0.01),
    flops_per_sample=3e8,
)

_step_began = [0.0]


class _SlowOptimizer(OptimizerSpec):
    """The task's optimizer, which waits after each step so that the step takes 5 % longer."""

    def build(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """Return the optimizer with the wait as a hook behind each step."""
        optimizer = super().build(*args, **kwargs)

        def wait(*_: Any) -> None:
            deadline = time.perf_counter() + SLOWER_BY * (time.perf_counter() - _step_began[0])
            while time.perf_counter() < deadline:
                pass

        optimizer.register_step_post_hook(wait)
        return optimizer


def _slow_loss(model: nn.Module, batch: Any) -> Tensor:
    _step_began[0] = time.perf_counter()
    return _loss(model, batch)


SLOW = dataclasses.replace(SAME, loss=_slow_loss, optimizer=_SlowOptimizer(**vars(SAME.optimizer)))


def _wrong(factor: float) -> Task:
    right = tasks.get("resnet50")

    def build_model() -> nn.Module:
        model = right.build_model()
        model.get_parameter(WRONG_PARAMETER).register_hook(lambda gradient: gradient * factor)
        return model

    return dataclasses.replace(right, build_model=build_model)


WRONG_O0 = _wrong(1.01)
WRONG_O1 = _wrong(1.1)
