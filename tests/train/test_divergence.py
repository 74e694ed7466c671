"""A training whose loss is no finite number says where, and ends there unless told to go on."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import tiny_task
from torch import Tensor, nn

from gallery_lib import tasks
from gallery_lib.errors import Diverged
from gallery_lib.train.loop import train
from gallery_lib.train.results import read_results


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return options of a run whose loss is not finite from step 6 on.

    Its weights are not finite from step 7 on.
    """
    taken = []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        taken.extend([None] if model.training else [])
        value = tiny_task.loss(model, batch)
        return value * float("inf") if len(taken) >= 6 else value

    task = dataclasses.replace(tiny_task.TASK, loss=loss)
    monkeypatch.setattr(tasks, "get", lambda name: task)
    return lambda **values: tiny_task.config(
        run_dir=str(tmp_path / "run"), max_steps=12, evaluate=False, **values
    )


@pytest.mark.parametrize(("log_interval", "ends_after"), [(1, 6), (4, 8)])
def test_it_ends_with_what_was_measured_until_then(
    config: Any, tmp_path: Path, log_interval: int, ends_after: int
) -> None:
    with pytest.raises(
        Diverged,
        match=r"no finite number from step 6 on rank 0 on, so .* --no-terminate-on-nan trains on",
    ):
        train(config(log_interval=log_interval))
    results = read_results(tmp_path / "run")
    assert results.diverged_at == {"step": 6, "rank": 0}
    assert (results.status, results.steps) == ("diverged", ends_after)
    assert len(results.loss["curve"]) == ends_after


def test_it_goes_on_where_that_is_asked_for(config: Any, tmp_path: Path) -> None:
    results = train(config(terminate_on_nan=False))
    assert results == read_results(tmp_path / "run")
    assert results.diverged_at is not None and results.diverged_at["step"] == 6
    assert (results.status, results.steps) == ("finished", 12)
