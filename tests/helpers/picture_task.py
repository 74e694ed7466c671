"""Tasks that call for our own kernels, for `--model tests/helpers/picture_task.py:NAME`.

NAME is one of torch's optimizers. Images are moved to the device as bytes, the loss is
cross-entropy, and the learning rate follows a schedule.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tiny_task
import torch
from torch import Tensor, nn

from gallery_lib.config import TrainConfig
from gallery_lib.data.images.image_folder import finish_batch
from gallery_lib.optim import OptimizerSpec, noam
from gallery_lib.tasks.domains import classification
from gallery_lib.tasks.task import Splits, Task

OPTIMIZERS = {
    "AdamW": OptimizerSpec("AdamW", lr=1e-2, weight_decay=1e-2, schedule=noam(4)),
    "Adam": OptimizerSpec("Adam", lr=1e-2, schedule=noam(4)),
    "SGD": OptimizerSpec(
        "SGD",
        lr=0.1,
        weight_decay=1e-4,
        arguments={"momentum": 0.9, "nesterov": True},
        schedule=noam(4),
    ),
    "RMSprop": OptimizerSpec("RMSprop", lr=1e-3, arguments={"momentum": 0.9}, schedule=noam(4)),
    "RAdam": OptimizerSpec("RAdam", lr=1e-2, schedule=noam(4)),
    "NAdam": OptimizerSpec("NAdam", lr=1e-2, schedule=noam(4)),  # has no sync-free form here
}


class Pictures(tiny_task.Stripes):
    """The stripes of tiny_task as bytes [16, 16, 3]."""

    finish_batch = staticmethod(finish_batch)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = super().__getitem__(index)
        return (image * 40 + 128).clamp(0, 255).to(torch.uint8).permute(1, 2, 0).contiguous(), label


def build_model() -> nn.Module:
    """Return the tiny model, with the same weights in every run."""
    torch.manual_seed(3)
    return tiny_task.build_model()


def __getattr__(name: str) -> Task:
    if name not in OPTIMIZERS:
        raise AttributeError(name)
    return dataclasses.replace(
        tiny_task.TASK,
        name=name,
        build_model=build_model,
        data=lambda config: Splits(Pictures(256, config.seed * 1000), Pictures(64, 500_000)),
        loss=classification.loss,
        optimizer=OPTIMIZERS[name],
    )


def config(name: str, **values: Any) -> TrainConfig:
    """Return the options of a short run of one of the tasks here."""
    return dataclasses.replace(tiny_task.config(**values), model=f"{__file__}:{name}")
