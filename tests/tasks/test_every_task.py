"""What holds for each task of the gallery: its size, that it learns, parity, and two processes that train as one does."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from gallery_lib import hardware, tasks
from gallery_lib.config import LaunchConfig, TrainConfig
from gallery_lib.measure import parity, probe, reference, worker
from gallery_lib.train import Observer, Session, evaluate, train

PARAMETERS = {
    "alexnet": 61_100_840,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "vgg16": 138_357_544,
    "timm_vovnet": 22_600_296,
    "timm_vision_transformer": 22_050_664,
    "pytorch_unet": 17_267_458,
    "hf_Bart": 139_420_416,
    "hf_Bert": 109_514_298,
    "speech_transformer": 44_323_328 + 512 * 4233,
    "tts_angular": 9_381_890,
}
"""FACTS: torchvision, timm, transformers and the papers; the last two derived from the layers' sizes."""

SMALL: dict[str, dict[str, Any]] = {"resnet50": {"batch_size": 4, "image_size": 64}}
"""Sizes at which a step takes a fraction of a second."""

LEARNING: dict[str, dict[str, Any]] = {"resnet50": {"batch_size": 16, "image_size": 64, "max_steps": 30}}
"""Options with which the held-out metric clearly moves within seconds."""

MOVES: dict[str, tuple[str, float]] = {"resnet50": ("top1", 0.1)}
"""The metric, and by how much it is better at least (a negative amount: lower is better)."""

every_task = pytest.mark.parametrize("name", tasks.names())


def test_the_gallery_has_the_eleven_tasks() -> None:
    assert set(tasks.names()) == set(PARAMETERS)


@every_task
def test_a_model_has_the_parameters_of_its_paper(name: str) -> None:
    with torch.device("meta"):
        model = tasks.get(name).build_model()
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == PARAMETERS[name] == tasks.get(name).parameters


@every_task
def test_a_task_says_what_there_is_to_know_about_it(name: str) -> None:
    task = tasks.get(name)
    assert task.name == name and task.where_time_goes and task.flops_per_sample > 1e6
    assert task.data_examples and task.predictions and task.quick and task.full
    assert (task.image_size is None) != (task.sequence_length is None)


class _Untrained(Observer):
    """Takes the metrics before the first step."""

    def before_step(self, session: Session, step: int, batch: Any) -> None:
        if step == 0:
            self.metrics = evaluate(session)


@pytest.mark.slow
@every_task
def test_a_task_learns(name: str, tmp_path: Path) -> None:
    untrained = _Untrained()
    config = TrainConfig(model=name, threads=hardware.cores(), run_dir=str(tmp_path), **LEARNING[name])
    trained = train(config, untrained).metrics
    metric, amount = MOVES[name]
    gained = trained[metric] - untrained.metrics[metric]
    assert (gained > amount) if amount > 0 else (gained < amount), f"{metric}: {untrained.metrics[metric]:.3f} → {trained[metric]:.3f}"


@pytest.mark.slow
@every_task
def test_baseline_and_backend_compute_the_same_training(name: str, tmp_path: Path) -> None:
    steps = parity.PROBE_BATCHES
    asked = TrainConfig(
        model=name, threads=hardware.cores(), max_steps=steps, warmup_steps=0, log_interval=1, evaluate=False, **SMALL[name]
    )
    configs = {
        "baseline": asked,
        "compiler-opt": dataclasses.replace(asked, compiler_opt=True),
        "reference": reference.configuration(asked, steps),
    }
    losses, probes = {}, {}
    for variant, config in configs.items():
        exact = variant == "reference"
        role = worker.Role(variant, None, 0, steps, reference.PROBE_BATCHES if exact else steps)
        observer = worker.Reference(role) if exact else worker.Probing(role)
        results = train(dataclasses.replace(config, run_dir=str(tmp_path / variant)), observer)
        losses[variant] = [loss for _, loss in results.loss["curve"]]
        probes[variant] = probe.load(tmp_path / variant / worker.PROBE_FILE)
        torch._dynamo.reset()
    outcome = parity.judge(tuple(losses.values()), tuple(probes.values()), "O0")
    assert outcome.passed, outcome.checks


TWO_PROCESSES_TOLERANCE = 0.05
"""Relative difference of losses: batch norm takes its statistics, and a mean over tokens its count, per process."""


@pytest.mark.slow
@every_task
def test_two_processes_train_as_one_does_with_the_same_global_batch(name: str, tmp_path: Path) -> None:
    small = TrainConfig(model=name, seed=1, **SMALL[name])
    losses = {}
    for processes in (1, 2):
        config = dataclasses.replace(small, batch_size=SMALL[name]["batch_size"] * 2 // processes, run_dir=str(tmp_path / f"{processes}"))
        config = reference.configuration(config, 3)
        losses[processes] = reference.run_reference(config, LaunchConfig(nproc_per_node=processes)).losses
    assert losses[2] == pytest.approx(losses[1], rel=TWO_PROCESSES_TOLERANCE)
