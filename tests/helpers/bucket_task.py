"""A task with all that an exact resume has to bring back, for tests: `--model …:TASK`.

Its sequences are shuffled in length buckets and augmented anew in each pass. The model has dropout
and batch norm, the optimizer momentum and a schedule. `SLOW` takes its time over a step.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from gallery_lib.config import TrainConfig
from gallery_lib.data.seeded_items import of_item
from gallery_lib.optim import OptimizerSpec, noam
from gallery_lib.tasks.task import Splits, Task

CLASSES, WIDTH, ITEMS = 4, 8, 96


class Sequences(Dataset[Any]):
    """Sequences [T, 8] with T from 3 to 12, whose class is the sign pattern of their mean."""

    def __init__(self, items: int, seed: int) -> None:
        self.seed = seed
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # workers read it too
        self.lengths = [3 + (7 * index) % 10 for index in range(items)]

    def set_epoch(self, epoch: int) -> None:
        """Have items augmented as in that epoch."""
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> tuple[Tensor, int, int]:
        label = index % CLASSES
        generator = torch.Generator().manual_seed(index)
        values = torch.randn(self.lengths[index], WIDTH, generator=generator)
        values[:, label] += 1.5
        noise = of_item(self.seed, int(self._epoch), index).normal(size=values.shape)
        return values + 0.3 * torch.from_numpy(noise).float(), label, index

    def collate(self, items: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Return padded values [N, T, 8], labels [N] and indices [N]."""
        values, labels, indices = zip(*items, strict=True)
        padded = nn.utils.rnn.pad_sequence(list(values), batch_first=True)
        return padded, torch.tensor(labels), torch.tensor(indices)


class Model(nn.Module):
    """Two layers on each time step, averaged over time."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, 16)
        self.norm = nn.BatchNorm1d(16)
        self.dropout = nn.Dropout(0.2)
        self.outer = nn.Linear(16, CLASSES)

    def forward(self, values: Tensor) -> Tensor:
        """Return logits [N, 4]."""
        inner = self.norm(self.inner(values).transpose(1, 2)).transpose(1, 2)
        return self.outer(self.dropout(F.relu(inner)).mean(1))


def loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Return the cross-entropy of a batch; note its samples where RECORD_SAMPLES names a folder."""
    if folder := os.environ.get("RECORD_SAMPLES"):
        with (Path(folder) / f"{os.getpid()}.txt").open("a") as file:
            print(*batch[2].tolist(), file=file)
    return F.cross_entropy(model(batch[0]), batch[1])


def slow_loss(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Return the loss after 20 ms."""
    time.sleep(0.02)
    return loss(model, batch)


def metrics(model: nn.Module, batch: Any) -> dict[str, tuple[Tensor, int]]:
    """Return the accuracy as a pair: number of right answers, number of sequences."""
    return {"top1": ((model(batch[0]).argmax(1) == batch[1]).sum(), len(batch[1]))}


TASK = Task(
    name="buckets",
    title="Buckets",
    domain="test",
    batch_size=4,
    build_model=Model,
    data=lambda config: Splits(Sequences(ITEMS, config.seed), Sequences(16, 1)),
    loss=loss,
    metrics=metrics,
    chance=lambda splits: {"top1": 1 / CLASSES},
    optimizer=OptimizerSpec("AdamW", lr=1e-2, weight_decay=0.01, schedule=noam(20)),
    flops_per_sample=1e4,
)
SLOW = dataclasses.replace(TASK, name="slow buckets", loss=slow_loss)


def config(name: str = "TASK", **values: Any) -> TrainConfig:
    """Return the options of a short run of one of the tasks here."""
    steps = {"max_steps": 40, "log_interval": 3, "max_grad_norm": 1.0}
    task = {"model": f"{__file__}:{name}", "amp_level": "O0", "workers": 2, "threads": 1}
    return TrainConfig(**{**task, **steps, **values})
