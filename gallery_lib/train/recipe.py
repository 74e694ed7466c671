"""How a plain model is made ready to train: `Recipe`, through accelerate(), as the options of a run ask.

measure/ has others beside it: single techniques (recipes.py), and other libraries, used as they tell their users to (peers.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from gallery_lib.acceleration import accelerate, techniques
from gallery_lib.config import TrainConfig, backend_config
from gallery_lib.data.loading.device_loader import DeviceLoader
from gallery_lib.kernels.runtime import usage


@dataclass(frozen=True)
class Plain:
    """What a recipe starts from: a task's model and loader as they are, and the options of the run."""

    model: nn.Module
    loader: DataLoader[Any]
    build_optimizer: Callable[
        ..., torch.optim.Optimizer
    ]  # the task's, with `accelerated` as OptimizerSpec.build has it
    config: TrainConfig
    autocast_dtype: torch.dtype | None  # None: fp32


@dataclass
class Prepared:
    """A model that is ready to train, with its batches and optimizer. Its parameters are the plain model's own objects."""

    model: nn.Module
    loader: DeviceLoader
    optimizer: torch.optim.Optimizer
    autocast_dtype: (
        torch.dtype | None
    )  # of forward pass and loss; None: fp32, or the recipe sees to it
    techniques: dict[str, str]
    propagate: Callable[[Tensor], Any] = Tensor.backward  # a loss's gradients into `.grad`
    kernels: bool = (
        False  # whether own kernels carry out the optimizer's step, and with it the scaler's
    )


class Recipe:
    """accelerate(), as the run's options ask."""

    keeps_loader: bool = True
    """In a run of one process, whether batches come from the plain loader itself rather than from another one that is made of it."""

    def prepare(self, plain: Plain) -> Prepared:
        """The model, ready."""
        plain_optimizer = plain.build_optimizer(accelerated=False)
        wrapped, batches, optimizer = accelerate(
            plain.model, plain.loader, plain_optimizer, backend_config(plain.config)
        )
        kernels = usage.used(batches.device)
        return Prepared(
            wrapped, batches, optimizer, plain.autocast_dtype, techniques(wrapped), kernels=kernels
        )
