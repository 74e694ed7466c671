"""The learning rate of each step is that of torch's scheduler, and the log tells it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import bucket_task
import pytest
import torch
from refusal import refused
from tiny_task import TASK, config
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from gallery_lib.train.loop import train
from gallery_lib.train.results import read_steps
from gallery_lib.train.session import Observer, Session

STEPS, LR = 12, 0.02


class Batches(Observer):
    def __init__(self) -> None:
        self.batches: list[Any] = []

    def before_step(self, session: Session, step: int, batch: Any) -> None:
        self.batches.append([value.clone() for value in batch])


def after_warm_up(optimizer: Any) -> LRScheduler:
    warmup = lr_scheduler.LinearLR(optimizer, 1 / 5, total_iters=4)
    cosine = lr_scheduler.CosineAnnealingLR(optimizer, STEPS - 4)
    return lr_scheduler.SequentialLR(optimizer, [warmup, cosine], [4])


SCHEDULES: dict[str, tuple[dict[str, Any], Callable[..., LRScheduler]]] = {
    "linear": ({}, lambda optimizer: lr_scheduler.LinearLR(optimizer, 1.0, 0.0, STEPS)),
    "cosine": (
        {"lr_schedule_steps": 30},
        lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 30),
    ),
    "cosine after a warm-up": ({"lr_warmup_steps": 4}, after_warm_up),
    "none": ({}, lambda optimizer: lr_scheduler.ConstantLR(optimizer, 1.0)),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_losses_and_rates_are_those_of_a_plain_loop_with_torch_s_scheduler(
    name: str, tmp_path: Path
) -> None:
    options, scheduler = SCHEDULES[name]
    options = {**options, "lr_schedule": name.split()[0]}
    watching = Batches()
    results = train(
        config(max_steps=STEPS, lr=LR, evaluate=False, run_dir=str(tmp_path), **options), watching
    )
    torch.manual_seed(0)
    model = TASK.build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
    schedule, losses, rates = scheduler(optimizer), [], []
    for batch in watching.batches:
        optimizer.zero_grad()
        loss = TASK.loss(model, batch)
        loss.backward()
        losses.append(loss.item())
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert [loss for _, loss in results.loss["curve"]] == losses
    assert [line["learning_rate"] for line in read_steps(tmp_path)] == rates


@pytest.mark.parametrize(
    ("options", "parameter", "value"),
    [
        ({"lr_schedule_steps": 9}, "lr_schedule_steps", "task"),
        ({"lr_schedule": "cosine", "lr_warmup_steps": 11}, "lr_warmup_steps", "of 12"),
        ({"lr_schedule": "linear", "lr_schedule_steps": 11}, "lr_schedule_steps", "12 steps"),
        ({"model": f"{bucket_task.__file__}:TASK", "lr_warmup_steps": 5}, "lr_warmup_steps", "own"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    options: dict[str, Any], parameter: str, value: object, tmp_path: Path
) -> None:
    with refused(parameter, value):
        train(config(**{"max_steps": STEPS, "run_dir": str(tmp_path), **options}))


def test_the_length_follows_the_epochs(tmp_path: Path) -> None:
    options = {"max_steps": None, "epochs": 1, "batch_size": 64, "lr_schedule": "linear"}
    train(config(**options, lr=1.0, evaluate=False, log_interval=1, run_dir=str(tmp_path / "a")))
    rates = [line["learning_rate"] for line in read_steps(tmp_path / "a")]
    assert rates == pytest.approx([1, 3 / 4, 1 / 2, 1 / 4])
    with refused("lr_warmup_steps", "3 of 4"):
        train(config(**options, lr_warmup_steps=3, run_dir=str(tmp_path / "b")))
