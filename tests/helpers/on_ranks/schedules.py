"""Schedulers that were built before accelerate() divided their loader."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from gallery_lib import Config, accelerate
from gallery_lib.acceleration import techniques


def note(kind: str, batches: int, options: dict[str, Any]) -> str | None:
    """Return what accelerate() notes of a scheduler beside a loader of so many batches."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = getattr(lr_scheduler, kind)(optimizer, **options)
    loader = DataLoader(TensorDataset(torch.ones(batches * 3, 2)), batch_size=3)
    config = Config()
    config.compiler.enabled = False
    model, *_ = accelerate(model, loader, optimizer, scheduler, config)
    return techniques(model).get("schedule")
