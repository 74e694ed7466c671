"""Recipe that makes a plain model ready to train, through `accelerate()`, as a run's options ask.

measure/variants.py has other recipes: single techniques, and other libraries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from gallery_lib.acceleration import accelerate, techniques
from gallery_lib.config import TrainConfig, backend_config
from gallery_lib.data.loading.device_loader import DeviceLoader
from gallery_lib.kernels.runtime import usage
from gallery_lib.memory import takes_any_layout


@dataclass(frozen=True)
class Plain:
    """Input of a recipe: a task's model and loader as they are, and the options of the run."""

    model: nn.Module
    loader: DataLoader[Any]
    # The task's builder; `accelerated` means the same as in OptimizerSpec.build.
    build_optimizer: Callable[..., torch.optim.Optimizer]
    config: TrainConfig
    autocast_dtype: torch.dtype | None  # None: fp32


@dataclass
class Prepared:
    """A model that is ready to train, with its batches and optimizer.

    Its parameters are the plain model's own objects.
    """

    model: nn.Module
    loader: DeviceLoader
    optimizer: torch.optim.Optimizer
    # Dtype of forward pass and loss. None: fp32, or the recipe applies autocast itself.
    autocast_dtype: torch.dtype | None
    techniques: dict[str, str]
    # Adds a loss's gradients to `.grad`.
    propagate: Callable[[Tensor], Any] = field(default_factory=lambda: Tensor.backward)
    # Whether our own kernels run the optimizer's step, and with it the scaler's.
    kernels: bool = False


def lay_out_batches(model: nn.Module, batches: DeviceLoader, done: dict[str, str]) -> None:
    """Have a task's images arrive in the layout of its convolutions, which spares a conversion.

    Only where no code but that of libraries sees them before.
    """
    if done.get("layout") == "channels_last" and takes_any_layout(model):
        batches.memory_format = torch.channels_last


class Recipe:
    """Preparation by `accelerate()`, as the run's options ask."""

    keeps_loader: bool = True
    """Whether batches of a run of one process come from the plain loader itself.

    Otherwise they come from another loader that the recipe makes of it.
    """

    def prepare(self, plain: Plain) -> Prepared:
        """Return the model ready to train, with its batches and optimizer."""
        plain_optimizer = plain.build_optimizer(accelerated=False)
        config = backend_config(plain.config)
        config.compute.bf16 = plain.autocast_dtype is torch.bfloat16
        config.compute.fp16 = plain.autocast_dtype is torch.float16
        wrapped, batches, optimizer = accelerate(plain.model, plain.loader, plain_optimizer, config)
        lay_out_batches(plain.model, batches, techniques(wrapped))
        kernels = usage.used(batches.device)
        return Prepared(
            wrapped, batches, optimizer, plain.autocast_dtype, techniques(wrapped), kernels=kernels
        )
