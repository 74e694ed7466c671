"""Device memory that runs out at a chosen allocation: each command says so, and leaves nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_gpu.running import run
from fake_gpu.test_commands import SHORT, TINY, own_folders

__all__ = ["own_folders"]
TRAINING = ("--max-steps=3", "--workers=0", "--no-evaluate", "--threads=1")
COMMANDS = {
    "train": ("launch_single_task.py", "--compiler-opt", f"--model={TINY}", *TRAINING),
    "tune": ("launch_single_task.py", "--compiler-opt", "--tune", f"--model={TINY}", *TRAINING),
    "bench": ("-m", "gallery_lib", "bench", TINY, "--variants=ours", *SHORT),
}
MODEL, FORWARD, OPTIMIZER = 3, 16, 40
"""Allocations of the tiny task, one for each tensor: of its weights, a step, and AdamW's state."""


def run_short_of_memory(
    command: str, allocation: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, str]:
    monkeypatch.setenv("FAKE_GPU_FAIL_ALLOCATION", str(allocation))
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    done = run(*COMMANDS[command], everywhere=True)
    return done.returncode, done.stdout


def nothing_half_written(runs: Path) -> None:
    assert not list(runs.rglob("results.json")) and not list(runs.rglob("*.tmp"))
    for file in runs.rglob("*.json"):
        json.loads(file.read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "allocation"),
    [
        ("train", FORWARD),
        *(
            pytest.param(command, allocation, marks=pytest.mark.thorough)
            for command, allocation in (("train", MODEL), ("train", OPTIMIZER), ("tune", FORWARD))
        ),
    ],
)  # fmt: skip
def test_a_run_that_does_not_fit_says_so(own_folders, monkeypatch, command, allocation):
    code, printed = run_short_of_memory(command, allocation, monkeypatch)
    assert code == 1 and "Traceback" not in printed, printed
    (error,) = [line for line in printed.splitlines() if line.startswith("error: ")]
    assert "the memory of the GPU ran out" in error and "--batch_size" in error
    nothing_half_written(own_folders)
    assert not list((own_folders.parent / "cache").glob("tuning/*"))


@pytest.mark.thorough
@pytest.mark.slow
def test_a_bench_keeps_the_reason(own_folders, monkeypatch):
    code, printed = run_short_of_memory("bench", MODEL, monkeypatch)
    assert code == 1 and "Traceback" not in printed, printed
    assert "Not measured: what this GPU can do at most" in printed
    (file,) = own_folders.rglob("bench.json")
    (task,) = json.loads(file.read_text())["tasks"].values()
    assert "out of memory. nvidia-smi lists what uses the GPU" in task["reason"]
    nothing_half_written(own_folders)
