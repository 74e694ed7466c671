"""Tests inside a process with the fake device: a training goes on from its checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from gallery_lib.checkpoint import Checkpoint
from gallery_lib.optim.grad_scaler import GradScaler
from gallery_lib.optim.sync_free import AdamW

STEPS, SAVED_AT = 8, 4


@pytest.fixture(autouse=True)
def kernels_on(monkeypatch):
    monkeypatch.setenv("GALLERY_COMPILER_OPT", "1")
    monkeypatch.setenv("GALLERY_KERNELS", "1")


class Training:
    """A model with dropout on the device, its optimizer and scaler."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        layers = (nn.Linear(4, 16), nn.Dropout(0.3), nn.Linear(16, 1))
        self.model = nn.Sequential(*layers).cuda()
        self.optimizer = AdamW(self.model.parameters(), lr=0.01)
        self.scaler = GradScaler("cuda", init_scale=2.0**8)

    def checkpoint(self, folder: Path, every: int) -> Checkpoint:
        parts = {"model": self.model, "optimizer": self.optimizer, "scaler": self.scaler}
        return Checkpoint(folder, **parts, every=every)

    def run(self, steps: range, checkpoint: Checkpoint | None = None) -> list[float]:
        losses = []
        for step in steps:
            batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(step)).cuda()
            self.optimizer.zero_grad()
            loss = (self.model(batch) - 1).square().mean()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            losses.append(loss.item())
            if checkpoint is not None:
                checkpoint.step()
        return losses


def test_a_training_with_dropout_goes_on_with_the_same_losses(tmp_path):
    whole = Training().run(range(STEPS))
    first = Training()
    checkpoint = first.checkpoint(tmp_path, every=1)
    assert first.run(range(SAVED_AT), checkpoint) == whole[:SAVED_AT]
    checkpoint.close()
    second = Training()
    torch.cuda.manual_seed(99)  # of the process that goes on
    checkpoint = second.checkpoint(tmp_path, every=100)
    assert checkpoint.steps == SAVED_AT
    assert second.run(range(SAVED_AT, STEPS), checkpoint) == whole[SAVED_AT:]
    checkpoint.close()
