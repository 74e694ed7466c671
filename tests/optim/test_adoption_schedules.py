"""Learning-rate schedulers go on with an optimizer that `accelerate_optimizer` changed."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from optim.adoption import SAID, make, network, train
from torch.optim import lr_scheduler

from gallery_lib.optim import fused_cpu
from gallery_lib.optim.adoption import accelerate_optimizer

SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda n: 0.9**n),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=4), lr_scheduler.CosineAnnealingLR(o, 8)], [4]
    ),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=0.9),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(
        o, 0.05, total_steps=12, cycle_momentum="lr_decay" not in o.defaults
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ExponentialLR(o, 0.9), lr_scheduler.StepLR(o, 3)], optimizer=o
    ),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("order", ["scheduler first", "accelerated first"])
@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adagrad"])
def test_schedulers_give_the_same_learning_rates(
    schedule: str, order: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for change in (True, False):
        model = network()
        optimizer = make(name, model)
        if change and order == "accelerated first":
            accelerate_optimizer(optimizer)
        scheduler = SCHEDULES[schedule](optimizer)
        if change and order == "scheduler first":
            said = accelerate_optimizer(optimizer)
            assert said.startswith(SAID[name])
        steps: list[str] = []
        if change and name != "Adagrad":  # the wrapper has to lead to the new class's step
            form = getattr(fused_cpu, name)
            real = form._step_in_one_pass
            monkeypatch.setattr(
                form,
                "_step_in_one_pass",
                lambda *a, real=real, s=steps: (s.append("ours"), real(*a))[1],
            )
        rates = []
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for step in range(10):
                train(model, optimizer, range(step, step + 1), scheduler)
                group = optimizer.param_groups[0]
                rates.append((group["lr"], group.get("betas"), group.get("momentum")))
        if change and name != "Adagrad":
            assert len(steps) == 10
            monkeypatch.undo()
        results.append((rates, [p.detach() for p in model.parameters()]))
    assert results[0][0] == results[1][0]
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-5, atol=1e-5)


def test_the_warning_of_a_scheduler_that_is_stepped_first_is_given_as_before() -> None:
    for stepped in (False, True):
        optimizer = make("AdamW", network())
        scheduler = lr_scheduler.StepLR(optimizer, 3)
        accelerate_optimizer(optimizer)
        if stepped:
            optimizer.step()
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            scheduler.step()
        assert [("before `optimizer.step()`" in str(each.message)) for each in given] == (
            [] if stepped else [True]
        )


def test_the_wrapper_of_a_scheduler_keeps_no_optimizer_alive() -> None:
    optimizer = make("AdamW", network())
    lr_scheduler.StepLR(optimizer, 3)
    accelerate_optimizer(optimizer)
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None
