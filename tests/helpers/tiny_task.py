"""A task that trains in milliseconds, for tests: a small convolutional network on synthetic images.

It is given as `--model tests/helpers/tiny_task.py:TASK`. `SLOW`, `WRONG` and `FAILING` are the same
with a planted defect. `FAILING_ACCELERATED` has one where the accelerated backend is on, and
`WRONG_EAGER_O1` in half precision where it is off. Those that begin with `LATE` go wrong at step
12, or at step 50. Of the processes that load the data of `BURSTS`, one is slow.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import Dataset, get_worker_info

from gallery_lib.config import TrainConfig
from gallery_lib.config.switches import compiler_enabled
from gallery_lib.optim import OptimizerSpec
from gallery_lib.tasks.task import Splits, Task

CLASSES = 4


class Stripes(Dataset[Any]):
    """Images [3, 16, 16] with noise, whose class is the direction and period of their stripes."""

    def __init__(self, length: int, offset: int) -> None:
        self.length, self.offset = length, offset

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        generator = torch.Generator().manual_seed(self.offset + index)
        label = index % CLASSES
        grid = torch.arange(16.0) * (0.8 if label < 2 else 1.6)
        wave = torch.sin(grid + 6.28 * torch.rand((), generator=generator))
        image = wave.expand(16, 16) if label % 2 else wave[:, None].expand(16, 16)
        return image.expand(3, 16, 16) + 0.3 * torch.randn(3, 16, 16, generator=generator), label


class _SlowStripes(Stripes):
    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        worker = get_worker_info()
        if worker is not None and worker.id == 0:
            time.sleep(0.05)
        return super().__getitem__(index)


def build_model() -> nn.Module:
    """Return two convolutions and a linear layer.

    There is no batch norm, so ranks need no statistics in common.
    """
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the cross-entropy of a batch."""
    logits = model(batch[0])
    return F.cross_entropy(logits if logits.dtype is torch.float64 else logits.float(), batch[1])


def metrics(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, tuple[Tensor, int]]:
    """Return the accuracy as a pair: number of right answers, number of images."""
    return {"top1": ((model(batch[0]).argmax(1) == batch[1]).sum(), len(batch[1]))}


TASK = Task(
    name="tiny",
    title="Tiny",
    domain="test",
    batch_size=8,
    build_model=build_model,
    data=lambda config: Splits(Stripes(256, config.seed * 1000), Stripes(64, 500_000)),
    loss=loss,
    metrics=metrics,
    chance=lambda splits: {"top1": 1 / CLASSES},
    optimizer=OptimizerSpec("AdamW", lr=1e-2),
    flops_per_sample=1e6,
)


def _slow_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    time.sleep(0.02)
    return loss(model, batch)


def _wrong_model() -> nn.Module:
    model = build_model()
    next(model.parameters()).register_hook(lambda gradient: gradient * 1.01)
    return model


def _failing_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    raise ValueError("planted failure")


def _failing_accelerated_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return _failing_loss(model, batch) if compiler_enabled() else loss(model, batch)


def _wrong_eager_o1_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    value, device = loss(model, batch), batch[0].device.type
    wrong = torch.is_autocast_enabled(device) and not compiler_enabled()
    return 1.3 * value - 0.3 * value.detach() if wrong else value


def _with_step_hook(hook: Callable[[int, torch.optim.Optimizer], None]) -> Callable[[], nn.Module]:
    """Return a `build_model` after which each step of an optimizer calls `hook` with its number."""

    def build() -> nn.Module:
        steps = itertools.count(1)
        register_optimizer_step_pre_hook(lambda optimizer, *_: hook(next(steps), optimizer))
        return build_model()

    return build


_steps: list[int] = []


def _late_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return loss(model, batch) * (1.01 if len(_steps) >= 11 else 1.0)


def _drop_momentum(step: int, optimizer: torch.optim.Optimizer) -> None:
    if step >= 12:
        for state in optimizer.state.values():
            state["exp_avg"].zero_()


def _skip_each_50th(step: int, optimizer: torch.optim.Optimizer) -> None:
    if step >= 12 and step % 50 == 0:
        optimizer.zero_grad(set_to_none=True)


def _sleeping_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    time.sleep(0.5)
    return loss(model, batch)


def _variant(name: str, **values: Any) -> Task:
    return dataclasses.replace(TASK, name=name, **values)


SLOW = _variant("slow", loss=_slow_loss)
WRONG = _variant("wrong", build_model=_wrong_model)
FAILING = _variant("failing", loss=_failing_loss)
FAILING_ACCELERATED = _variant("failing_accelerated", loss=_failing_accelerated_loss)
WRONG_EAGER_O1 = _variant("wrong_eager_o1", loss=_wrong_eager_o1_loss)
LATE_LOSS = _variant(
    "late_loss", loss=_late_loss, build_model=_with_step_hook(lambda step, _: _steps.append(step))
)
LATE_MOMENTUM = _variant("late_momentum", build_model=_with_step_hook(_drop_momentum))
LATE_SKIPS = _variant("late_skips", build_model=_with_step_hook(_skip_each_50th))
BURSTS = _variant(
    "bursts",
    data=lambda config: Splits(_SlowStripes(256, config.seed * 1000), Stripes(64, 500_000)),
)
SLEEPING = _variant("sleeping", loss=_sleeping_loss)


def config(name: str = "TASK", **values: Any) -> TrainConfig:
    """Return the options of a short run of one of the tasks here."""
    defaults = {"model": f"{__file__}:{name}", "amp_level": "O0", "workers": 0, "max_steps": 12}
    return TrainConfig(**{**defaults, "log_interval": 1, "threads": 1, **values})
