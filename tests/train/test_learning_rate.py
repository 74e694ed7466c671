"""The learning rate of each step is that of torch's scheduler, and the results tell it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from refusal import refused
from tiny_task import TASK, config
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from gallery_lib.config import TrainConfig
from gallery_lib.measure.comparison.untimed import reference_config
from gallery_lib.train import learning_rate
from gallery_lib.train.loop import train
from gallery_lib.train.resolved import resolve
from gallery_lib.train.results import read_results
from gallery_lib.train.session import Observer, Session

STEPS, LR = 12, 0.02


class Batches(Observer):
    """Keep the batches of a run."""

    def __init__(self) -> None:
        self.batches: list[Any] = []

    def before_step(self, session: Session, step: int, batch: Any) -> None:
        self.batches.append([value.clone() for value in batch])


def after(warmup: int, schedule: Callable[..., LRScheduler]) -> Callable[..., LRScheduler]:
    """Return torch's schedule behind its linear warm-up."""
    return lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [
            lr_scheduler.LinearLR(optimizer, 1 / (warmup + 1), total_iters=warmup),
            schedule(optimizer),
        ],
        [warmup],
    )


def after_warm_up(optimizer: Any) -> LRScheduler:
    return after(4, lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, STEPS - 4))(
        optimizer
    )


def onecycle(optimizer: Any) -> LRScheduler:
    more = {"pct_start": 0.5, "cycle_momentum": False}
    return lr_scheduler.OneCycleLR(optimizer, LR, total_steps=STEPS, **more)


SCHEDULES: dict[str, tuple[dict[str, Any], Callable[..., LRScheduler]]] = {
    "linear": ({}, lambda optimizer: lr_scheduler.LinearLR(optimizer, 1.0, 0.0, STEPS)),
    "cosine": (
        {"lr_schedule_steps": 30},
        lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 30),
    ),
    "cosine after a warm-up": ({"lr_warmup_steps": 4}, after_warm_up),
    "step": (
        {"lr_warmup_steps": 2, "lr_step_size": 3},
        after(2, lambda optimizer: lr_scheduler.StepLR(optimizer, 3, 0.1)),
    ),
    "onecycle": ({"lr_warmup_steps": 5}, onecycle),
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
    logged = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert [line["learning_rate"] for line in logged] == rates
    told = read_results(tmp_path).learning_rate
    assert (told["first"], told["last"]) == (rates[0], rates[-1])
    changes = dict(told["changes"])
    assert [rate for step, rate in enumerate(rates, 1) if step in changes] == list(changes.values())
    assert set(changes) == {1} | {
        step for step in range(2, STEPS + 1) if rates[step - 1] != rates[step - 2]
    }


def test_the_length_follows_the_epochs() -> None:
    results = train(
        config(
            max_steps=None, epochs=2, batch_size=64, lr_schedule="linear", evaluate=False, lr=1.0
        )
    )
    assert results.steps == 8 and results.learning_rate["last"] == pytest.approx(1 / 8)


@pytest.mark.parametrize(
    ("options", "parameter", "value"),
    [
        ({"lr_step_size": 3, "lr_schedule": "cosine"}, "lr_step_size", "cosine"),
        ({"lr_schedule_steps": 9}, "lr_schedule_steps", "task"),
        ({"lr_schedule": "cosine", "lr_warmup_steps": 11}, "lr_warmup_steps", "11 of 12"),
        ({"lr_schedule": "onecycle", "lr_schedule_steps": 11}, "lr_schedule_steps", "12 steps"),
        ({"model": "speech_transformer", "lr_warmup_steps": 5}, "lr_warmup_steps", "of its own"),
        ({"label_smoothing": 0.1, "model": "pytorch_unet"}, "label_smoothing", "pytorch_unet"),
        ({"pretrained": "a", "init_from": "b"}, "init_from", "pretrained"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    options: dict[str, Any], parameter: str, value: object
) -> None:
    with refused(parameter, value):
        resolve(config(**options), local_processes=1, run_dir="x")


def test_a_warm_up_as_long_as_the_epochs_is_refused() -> None:
    with refused("lr_warmup_steps", "3 of 4"):
        train(
            config(
                max_steps=None, epochs=1, batch_size=64, lr_schedule="onecycle", lr_warmup_steps=3
            )
        )


def test_the_reference_of_a_comparison_has_the_rates_of_the_variants() -> None:
    variant = TrainConfig(lr_schedule="cosine", lr_warmup_steps=5, max_steps=70)
    reference = reference_config(variant, 3, 1)
    assert (reference.max_steps, reference.lr_schedule_steps) == (3, 70)
    given = dataclasses.replace(variant, lr_schedule_steps=500)
    assert reference_config(given, 3, 1).lr_schedule_steps == 500
    constant = dataclasses.replace(variant, lr_schedule="task")
    assert reference_config(constant, 3, 1).lr_schedule_steps is None


def test_a_run_that_was_continued_tells_the_rates_from_where_it_went_on() -> None:
    told = learning_rate.facts(TrainConfig(lr_schedule="step"), [0.1, 0.1, 0.01], 7)
    assert told == {
        "schedule": "step",
        "first": 0.1,
        "last": 0.01,
        "changes": [[5, 0.1], [7, 0.01]],
    }
    assert learning_rate.facts(TrainConfig(), [], 7)["changes"] == []
