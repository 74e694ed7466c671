"""ResNet-50 with a defect planted in it, to see whether a comparison finds it (see trust.py).

`SLOW`: every step takes 5 % longer. `WRONG_O0` and `WRONG_O1`: one parameter's gradient is too large by 1 % and by
10 %. `SAME`: the task as it is, from this file.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import torch
from torch import Tensor, nn

from gallery_lib import tasks
from gallery_lib.optim import OptimizerSpec
from gallery_lib.tasks.task import Task

SLOWER_BY = 0.05
WRONG_PARAMETER = "layer3.0.conv1.weight"
SAME = tasks.get("resnet50")


class _SlowOptimizer(OptimizerSpec):
    """The task's optimizer, each of whose steps then waits, so that the whole step takes 5 % longer."""

    def build(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        optimizer = super().build(*args, **kwargs)

        def wait(*_: Any) -> None:
            deadline = time.perf_counter() + SLOWER_BY * (time.perf_counter() - _step_began[0])
            while time.perf_counter() < deadline:
                pass

        optimizer.register_step_post_hook(wait)
        return optimizer


_step_began = [0.0]


def _slow_loss(model: nn.Module, batch: Any) -> Tensor:
    _step_began[0] = time.perf_counter()
    return SAME.loss(model, batch)


def _wrong(factor: float) -> Task:
    def build_model() -> nn.Module:
        model = SAME.build_model()
        model.get_parameter(WRONG_PARAMETER).register_hook(lambda gradient: gradient * factor)
        return model

    return dataclasses.replace(SAME, build_model=build_model)


SLOW = dataclasses.replace(SAME, loss=_slow_loss, optimizer=_SlowOptimizer(**vars(SAME.optimizer)))
WRONG_O0 = _wrong(1.01)
WRONG_O1 = _wrong(1.1)
