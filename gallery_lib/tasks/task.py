"""What a task is: one model with its data, loss, optimizer, batch size and held-out metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils.data import Dataset

from gallery_lib.config import TrainConfig
from gallery_lib.optim import OptimizerSpec


@dataclass(frozen=True)
class Splits:
    """Training and held-out data. A data set may offer `set_epoch`, `finish_batch` and `collate` (see data/)."""

    train: Dataset[Any]
    held_out: Dataset[Any]


@dataclass(frozen=True)
class Task:
    """Everything that `train()` needs to know about a model.

    `loss` takes the (possibly wrapped) model and a batch and returns a scalar tensor; it runs under autocast.
    `metrics` takes the plain model and a batch and returns, for each metric, its sum over the batch and the number
    of terms. `build_model` starts from weights at which rounding errors do not explode, so that runs can be compared.
    """

    name: str
    title: str
    domain: str
    batch_size: int
    build_model: Callable[[], nn.Module]
    data: Callable[[TrainConfig], Splits]
    loss: Callable[[nn.Module, Any], Tensor]
    metrics: Callable[[nn.Module, Any], Mapping[str, tuple[Tensor, int]]]
    optimizer: OptimizerSpec
    flops_per_sample: float  # forward and backward, at the task's own input size
    chance: Callable[[Splits], dict[str, float]]  # the metrics of a model that has learned nothing
    quick: dict[str, Any] = field(default_factory=dict)  # options for a demonstration on a few cores
    full: dict[str, Any] = field(default_factory=dict)  # options for a GPU
    image_size: int | None = None
