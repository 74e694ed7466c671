"""A scheduler that was built for the undivided loader is named, on two processes alone."""

from __future__ import annotations

import contextlib
import io

import pytest
import torch
from ranks import on_ranks
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from gallery_lib import Config, accelerate
from gallery_lib.acceleration import techniques
from gallery_lib.comm import process_group

pytestmark = [pytest.mark.slow, pytest.mark.several_cores]


@pytest.mark.parametrize(
    ("kind", "batches", "options", "words"),
    [
        ("OneCycleLR", 10, {"max_lr": 0.1, "total_steps": 30}, "Build it with 15 steps"),
        ("CosineAnnealingLR", 10, {"T_max": 10}, "ends at 50%. Build it with 5 steps"),
        ("LinearLR", 7, {"total_iters": 14}, "takes 4 of 7 batches"),
        ("OneCycleLR", 10, {"max_lr": 0.1, "total_steps": 15}, None),
        ("ExponentialLR", 10, {"gamma": 0.9}, None),
    ],
)
@on_ranks("two")
def test_steps_of_the_undivided_loader_are_named(
    kind: str, batches: int, options: dict[str, float], words: str | None
) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = getattr(lr_scheduler, kind)(optimizer, **options)
    loader = DataLoader(TensorDataset(torch.ones(batches * 3, 2)), batch_size=3)
    config = Config()
    config.compiler.enabled = False
    config.compute.share_cores = False  # its line may come at any time
    with contextlib.redirect_stderr(io.StringIO()) as said:
        model, *_ = accelerate(model, loader, optimizer, scheduler, config)
    note = techniques(model).get("schedule")
    assert (words is None and note is None) or words in note
    # Rank 0 alone says what was done.
    lines = 0 if process_group.rank() else 1 + bool(note)
    assert len(said.getvalue().splitlines()) == lines, said.getvalue()
