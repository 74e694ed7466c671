"""Tests inside a process with the fake device: the gallery's tasks train on it as on the CPU.

No operators are fused, so each one's arithmetic is the CPU's, and losses can be compared. In bf16
the accelerated model is captured and replayed as CUDA graphs, where torch's compiler `cudagraphs`
can do that. A step asks no more of the device than `budget.json` has: launches, own kernels,
copies, waits. With FAKE_GPU_WRITE_BUDGET=1 in the environment the file is written anew.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from pathlib import Path

import pytest
import tiny_task
import torch
import without_dropout
from fake_gpu import work
from small_tasks import SMALL
from stand_in_compilers import capture_graphs, leave_eager

from gallery_lib import tasks
from gallery_lib.compiler import backend
from gallery_lib.config import TrainConfig
from gallery_lib.system.gpu import GpuState
from gallery_lib.tasks.domains import cross_entropy
from gallery_lib.train.loop import train
from gallery_lib.train.results import each_step_seconds
from gallery_lib.train.session import Observer

BUDGET = Path(__file__).with_name("budget.json")
AMP = {
    "O0": {"amp_level": "O0"},
    "bf16": {"amp_level": "O1", "amp_dtype": "bf16"},
    "fp16": {"amp_level": "O1", "amp_dtype": "fp16"},
}
CLOSE = {"O0": 2e-3, "bf16": 4e-2, "fp16": 2e-2}
"""Relative difference of losses before and after the first update; its only cause is rounding."""
STEPS = 4
"""Steps of a captured training: one as it is, one that is captured, and replays."""
NOT_CAPTURED = ("alexnet", "speech_transformer", "tts_angular", "vgg16")
"""Tasks that torch's `cudagraphs` cannot capture. Inductor can; its kernels do not run here."""
WITH_ALL_PRECISIONS = ("resnet18", "speech_transformer", "tts_angular")
"""One task of each kind. The others train in bfloat16 alone: what differs is their model."""


@pytest.fixture(autouse=True)
def own_runs_and_no_compiler(tmp_path, monkeypatch):
    """Send runs to a folder that is thrown away, and leave models uncompiled.

    Our cross-entropy takes losses of any size: here they are small.
    """
    monkeypatch.setenv("GALLERY_RUNS_DIR", str(tmp_path))
    monkeypatch.setattr(cross_entropy, "LARGE", 0)
    monkeypatch.setattr(backend, "_compile", leave_eager)
    yield
    torch._dynamo.reset()


def config_of(name: str, amp: str, steps: int = 2, **options) -> TrainConfig:
    return TrainConfig(
        model=f"{Path(without_dropout.__file__)}:{name}",
        seed=1, max_steps=steps, log_interval=1, workers=0, evaluate=False, threads=1,
        **AMP[amp], **SMALL[name], **options,
    )  # fmt: skip


class Counted(Observer):
    """Counts what a step asks of the device: the last one of a run."""

    def __init__(self) -> None:
        self._marks: list[Counter[str]] = []

    def before_step(self, session, step, batch):
        self._marks.append(work.counts())

    def after_training(self, session):
        self._marks.append(work.counts())

    def of_a_step(self) -> dict[str, int]:
        counts = self._marks[-1] - self._marks[-2]

        def sum_of(*beginnings: str) -> int:
            return sum(times for name, times in counts.items() if name.startswith(beginnings))

        return {
            "launches": sum_of("launch "),
            "replays": sum_of("call cudaGraphLaunch"),
            "launches by the host": sum_of("call a launch", "call cudaGraphLaunch"),
            "own kernels": sum_of("launch own kernel"),
            "copies": sum_of("launch aten::aten.copy_", "launch aten::copy_", "call cudaMemcpy"),
            "waits of the host": sum_of("call wait: "),
        }


def within_budget(name: str, variant: str, step: dict[str, int]) -> None:
    """Fail where a step asks for more than `budget.json` has; write it instead where asked to."""
    budget = json.loads(BUDGET.read_text()) if BUDGET.exists() else {}
    if os.environ.get("FAKE_GPU_WRITE_BUDGET"):
        budget.setdefault(name, {})[variant] = step
        ordered = {task: dict(sorted(budget[task].items())) for task in sorted(budget)}
        BUDGET.write_text(json.dumps(ordered, indent=1) + "\n")
        return
    allowed = budget[name][variant]
    assert {what: times for what, times in step.items() if times > allowed[what]} == {}, allowed


def losses(results) -> list[float]:
    return [loss for _, loss in results.loss["curve"]]


class Trying(Counted):
    """Takes memory before the first step, as cuDNN does for its trials, and gives it back."""

    def before_step(self, session, step, batch):
        super().before_step(session, step, batch)
        if step == 0:
            torch.empty(2**26, device="cuda")


@pytest.mark.parametrize("warmup", [0, 2])
def test_figures_are_the_devices_own_and_its_peak_of_memory_is_that_after_the_warm_up(warmup):
    config = tiny_task.config(warmup_steps=warmup, max_steps=6, log_interval=3, evaluate=False)
    observer = Trying()
    run = train(config, observer)
    launches = observer.of_a_step()["launches"]
    # A second for each launch; the last step's also log.
    assert 20 < 0.8 * launches < run.step_seconds["p50"] <= launches
    assert sum(run.phase_seconds.values()) == pytest.approx(run.step_seconds["p50"], rel=0.1)
    assert sum(each_step_seconds(Path(run.config["run_dir"]))) > 6 * 0.8 * launches
    assert run.gpu == GpuState(1755, 2619, 640, ["power cap"])
    memory = run.peak_memory_bytes
    assert 0 < memory["device"] < 2**26 <= memory["device_reserved"]


@pytest.mark.parametrize("name", [*WITH_ALL_PRECISIONS, "hf_Bert", "pytorch_unet"])
def test_eager_training_is_that_of_the_cpu(name, monkeypatch):
    config = config_of(name, "O0")
    on_device = train(config)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    on_cpu = train(config)
    assert losses(on_device) == pytest.approx(losses(on_cpu), rel=1e-3)


@pytest.mark.parametrize(
    ("name", "amp"),
    [
        (name, amp)
        for name in tasks.names()
        for amp in (AMP if name in WITH_ALL_PRECISIONS else ["bf16"])
    ],
)
def test_the_accelerated_training_is_that_of_eager(name, amp, monkeypatch):
    replayed = amp == "bf16" and name not in NOT_CAPTURED
    if replayed:
        monkeypatch.setattr(backend, "_compile", capture_graphs)
    config = config_of(name, amp, STEPS if replayed else 2, compiler_opt=True)
    of_ours, of_theirs = Counted(), Counted()
    ours = train(config, of_ours)
    theirs = train(dataclasses.replace(config, compiler_opt=False), of_theirs)
    assert losses(ours)[:2] == pytest.approx(losses(theirs)[:2], rel=CLOSE[amp])
    assert losses(ours) == pytest.approx(losses(theirs), rel=3 * CLOSE[amp])
    assert "own kernel" in ours.techniques["kernels"]
    assert "plain torch" not in ours.techniques["kernels"]
    assert ours.skipped_steps == theirs.skipped_steps
    assert ours.techniques["optimizer"] in ("sync-free", "fused")
    within_budget(name, f"ours, {amp}", of_ours.of_a_step())
    assert replayed == (of_ours.of_a_step()["replays"] > 0)
    within_budget(name, f"eager, {amp}", of_theirs.of_a_step())
