"""The description of a run, as its processes read it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from refusal import refused
from tiny_task import config

from gallery_lib import tasks
from gallery_lib.config import TrainConfig
from gallery_lib.launcher import description
from gallery_lib.launcher.description import RunDescription
from gallery_lib.train.resolved import resolve


def test_it_arrives_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = resolve(config(lr=None, max_grad_norm=0.5), local_processes=1, run_dir=str(tmp_path))
    run = RunDescription(resolved, world_size=2, local_processes=1, host=1, held=True)
    ((variable, path),) = run.write().items()
    assert path == str(tmp_path / "run-host1.json")
    monkeypatch.delenv(variable, raising=False)
    assert description.of_this_run() is None
    monkeypatch.setenv(variable, path)
    assert description.of_this_run() == run
    Path(path).write_text("[]")
    with refused(tmp_path / "run-host1.json"):
        description.of_this_run()


def test_nothing_is_left_open(tmp_path: Path) -> None:
    task = tasks.get("vgg16")
    resolved = resolve(TrainConfig("vgg16"), local_processes=1, run_dir=str(tmp_path))
    left = [
        field.name
        for field in dataclasses.fields(resolved)
        if getattr(resolved, field.name) is None
    ]
    assert set(left) <= {"sequence_length", "epochs", "max_steps", "max_grad_norm", "data_dir"} | {
        "checkpoint_every",
        "resume",
    }
    assert resolved.batch_size == task.batch_size and resolved.lr == task.optimizer.lr
    assert resolve(TrainConfig("vgg16", lr=0.5), local_processes=1, run_dir="x").lr == 0.5


def test_what_was_given_is_checked(tmp_path: Path) -> None:
    with refused("batch_size", 0):
        resolve(TrainConfig("vgg16", batch_size=0), local_processes=1, run_dir=str(tmp_path))
