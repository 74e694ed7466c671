"""A task made of three functions of the reader's own: a model, a loss and a batch. The notebook your_model uses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from gallery_lib.config import TrainConfig
from gallery_lib.errors import InputError
from gallery_lib.optim import OptimizerSpec
from gallery_lib.tasks.task import Splits, Task

BATCHES = 256
HELD_OUT_BATCHES = 8
MakeBatch = Callable[[int, torch.Generator], Any]
"""(batch size, generator) → a batch: any nesting of tensors whose first dimension is the batch's."""


class MadeBatches(Dataset[Any]):
    """Item i is a whole batch, made from a generator that depends on (seed, i) alone."""

    def __init__(self, make_batch: MakeBatch, batch_size: int, batches: int, seed: int) -> None:
        self.make_batch, self.batch_size, self.batches, self.seed = make_batch, batch_size, batches, seed

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, index: int) -> Any:
        return self.make_batch(self.batch_size, torch.Generator().manual_seed(1_000_003 * self.seed + index))

    @staticmethod
    def collate(items: list[Any]) -> Any:
        """The one item of a batch is the batch."""
        return items[0]


def task_from(
    build_model: Callable[[], nn.Module],
    loss: Callable[[nn.Module, Any], Tensor],
    make_batch: MakeBatch,
    *,
    batch_size: int = 8,
    lr: float = 1e-3,
    name: str = "your_model",
) -> Task:
    """A task that trains `build_model()` with AdamW on `loss(model, batch)` over batches from `make_batch`.

    The held-out metric is the loss itself. The batch size is fixed: a run that asks for another raises InputError.
    """

    def data(config: TrainConfig) -> Splits:
        if config.batch_size not in (None, batch_size):
            raise InputError(f"batch_size={config.batch_size}: the model of this notebook makes batches of {batch_size}. Change it there.")
        return Splits(
            MadeBatches(make_batch, batch_size, BATCHES, config.seed),
            MadeBatches(make_batch, batch_size, HELD_OUT_BATCHES, config.seed + 1),
        )

    def metrics(model: nn.Module, batch: Any) -> dict[str, tuple[Tensor, int]]:
        return {"loss": (loss(model, batch).detach(), 1)}

    return Task(
        name=name,
        title="Your model",
        domain="your own",
        batch_size=batch_size,
        build_model=build_model,
        data=data,
        loss=loss,
        metrics=metrics,
        chance=lambda splits: {},
        optimizer=OptimizerSpec("AdamW", lr=lr),
        flops_per_sample=0.0,
        quick={"rounds": 8, "block_steps": 4, "parity_steps": 2},
        full={"warmup_steps": 10, "rounds": 20, "block_steps": 20},
        samples_per_item=batch_size,
    )
