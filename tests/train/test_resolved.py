"""The options of a run: completed once, carried by one file, and the precision they mean."""

import dataclasses
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from refusal import refused
from tiny_task import config

from gallery_lib import tasks
from gallery_lib.config import TrainConfig
from gallery_lib.system import hardware
from gallery_lib.train import precision
from gallery_lib.train.resolved import Run, resolve, this_run, workers_of


def test_a_run_arrives_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = resolve(config(lr=None, max_grad_norm=0.5), local_processes=1, run_dir=str(tmp_path))
    run = Run(resolved, world_size=2, local_processes=1, host=1, held=True)
    ((variable, path),) = run.write().items()
    assert path == str(tmp_path / "run-host1.json")
    monkeypatch.delenv(variable, raising=False)
    assert this_run() is None
    monkeypatch.setenv(variable, path)
    assert this_run() == run
    Path(path).write_text("[]")
    with refused(tmp_path / "run-host1.json"):
        this_run()


def test_nothing_is_left_open_and_what_was_given_is_checked(tmp_path: Path) -> None:
    task = tasks.get("vgg16")
    resolved = resolve(TrainConfig("vgg16"), local_processes=1, run_dir=str(tmp_path))
    left = {name for name, value in dataclasses.asdict(resolved).items() if value is None}
    assert left <= {
        *("sequence_length", "epochs", "max_steps", "max_grad_norm", "data_dir"),
        *("lr_schedule_steps", "pretrained"),
        *("checkpoint_every", "resume"),
    }
    assert resolved.batch_size == task.batch_size and resolved.lr == task.optimizer.lr
    assert resolve(TrainConfig("vgg16", lr=0.5), local_processes=1, run_dir="x").lr == 0.5
    with refused("batch_size", 0):
        resolve(TrainConfig("vgg16", batch_size=0), local_processes=1, run_dir=str(tmp_path))


@pytest.mark.parametrize(
    ("device", "free", "given", "workers"),
    [
        ("cuda", 2**30, None, 7),
        ("cuda", 2**26, None, 1),
        ("cuda", 2**26, 4, 4),
        ("cpu", 0, None, 1),
    ],
)
def test_many_processes_load_for_a_gpu_where_shared_memory_holds_their_batches(
    device: str, free: int, given: int | None, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "device_type", lambda: device)
    monkeypatch.setattr(hardware, "cores", lambda: 16)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    assert workers_of(TrainConfig("vgg16", workers=given), 2) == workers


@pytest.mark.parametrize("has_units", [True, False])
def test_auto_is_what_the_device_is_for_and_is_the_same_for_baseline_and_candidate(
    monkeypatch: pytest.MonkeyPatch, has_units: bool
) -> None:
    monkeypatch.setattr(hardware, "computes_in_bf16", lambda device_type: has_units)
    monkeypatch.setattr(hardware, "device_type", lambda: "cpu")

    def level(**options: Any) -> str:
        config = TrainConfig("tts_angular", **options)
        return resolve(config, local_processes=1, run_dir="x").amp_level

    assert level() == level(compiler_opt=True) == ("O1" if has_units else "O0")
    assert (level(amp_level="O0"), level(amp_level="O1")) == ("O0", "O1")
    assert precision.chosen_level("auto", "cuda") == "O1"
    words = "bf16 autocast (auto)" if has_units else "fp32 (auto)"
    assert precision.described("auto", "auto", "cpu") == words
    with refused("amp_dtype", "fp16"):
        precision.described("O1", "fp16", "cpu")
