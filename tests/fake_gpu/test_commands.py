"""Commands that start processes of their own run on the fake device as they will on a GPU.

What Triton compiles does not run there. So the compiler is `aot_eager`, and the values are right.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from fake_gpu.running import ROOT, run

from gallery_lib.system import paths

TINY = "tests/helpers/tiny_task.py:TASK"
SHORT = ("--rounds=4", "--block-steps=2", "--workers=0", "--threads=1")


def printed_by(*words: str, code: int = 0, **device: Any) -> str:
    """Return what a command printed, which ended with `code` and without a traceback."""
    done = run(*words, everywhere=True, **device)
    assert done.returncode == code and "Traceback" not in done.stdout, done.stdout
    return done.stdout


@pytest.fixture
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give commands folders of their own, but what was built for the device; return that of runs.

    The file of the folder `users` tells which processes have used CUDA itself.
    """
    built = paths.cache_dir()
    for name in ("fake_gpu", "cuda_on_host", "data"):
        (built / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / "cache").mkdir(exist_ok=True)
        (tmp_path / "cache" / name).symlink_to(built / name)
    monkeypatch.setenv("GALLERY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("GALLERY_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("FAKE_GPU_COMPILER", "aot_eager")
    monkeypatch.setenv("FAKE_GPU_USERS", str(tmp_path / "users"))
    return tmp_path / "runs"


def users(runs: Path) -> list[str]:
    """Return the commands of the processes that asked more of CUDA than whether it is there."""
    lines = (runs.parent / "users").read_text().splitlines()
    return [command for _, what, command in (x.split("\t") for x in lines) if what != "driver"]


@pytest.mark.slow
def test_doctor_names_the_device_and_uses_it_not(own_folders, monkeypatch):
    monkeypatch.setenv("FAKE_GPU_FAIL_ALLOCATION", "1")
    printed = printed_by("-m", "gallery_lib", "doctor", devices=2)
    assert "2 × Fake H100" in printed and "used with compiler-opt" in printed
    assert not (own_folders.parent / "users").exists()


@pytest.mark.slow
def test_a_comparison_gives_a_verdict_with_parity_and_only_its_ranks_use_the_device(
    own_folders, monkeypatch
):
    words = ("-m", "gallery_lib", "compare", f"--model={TINY}", "--no-evaluate")
    printed = printed_by(*words, "--parity-steps=1", *SHORT)
    assert "same training (parity passed)" in printed and "1 × Fake H100" in printed
    (file,) = own_folders.rglob("compiler-opt/results.json")
    techniques = json.loads(file.read_text())["techniques"]
    assert techniques["compiler"] == "aot_eager, on the fake device"
    assert techniques["optimizer"] == "fused"
    ranks = users(own_folders)
    assert ranks and all("spawn_main" in command for command in ranks)
    # Again, with the reference that is kept, until memory runs out in both variants.
    monkeypatch.setenv("FAKE_GPU_FAIL_ALLOCATION", "200")
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    printed = printed_by(*words, code=1)
    assert "baseline: rank 0: the memory of the GPU ran out" in printed
    assert len(list(own_folders.rglob("comparison.json"))) == 1


@pytest.mark.thorough
@pytest.mark.slow
def test_a_training_keeps_the_choice_of_its_tuning(own_folders):
    words = ("launch_single_task.py", f"--model={TINY}", "--compiler-opt", "--tune",
             "--max-steps=3", "--workers=0", "--no-evaluate", "--threads=1")  # fmt: skip
    told = []
    for number in ("1", "2"):
        folder = own_folders / number
        printed_by(*words, f"--run_dir={folder}")
        results = json.loads((folder / "results.json").read_text())
        told.append(results["techniques"]["tuning"])
    (kept,) = (own_folders.parent / "cache" / "tuning").glob("*.json")
    choice = json.loads(kept.read_text())
    assert {row["candidate"] for row in choice["rows"]} >= {"eager", choice["chosen"]}
    assert not any("dropped" in row["verdict"] for row in choice["rows"])
    assert all(text.startswith(choice["chosen"]) for text in told)
    assert "kept" in told[1] and "kept" not in told[0]
    found = users(own_folders)
    assert all("launcher.worker" in command for command in found), found


@pytest.mark.thorough
@pytest.mark.slow
def test_a_bench_publishes_its_figures(own_folders, tmp_path):
    copy = shutil.copytree(
        ROOT / "benchmarks", tmp_path / "benchmarks", ignore=shutil.ignore_patterns("results")
    )
    (copy / "results" / "fake").mkdir(parents=True)
    (copy / "results" / "fake" / "machine.yaml").write_text("name: A fake GPU\nabout: For tests.\n")
    words = (str(copy / "bench.py"), "fake", TINY, "--profile=quick", "--variants=ours")
    printed_by(*words, *SHORT)
    bench = json.loads((copy / "results" / "fake" / "bench-small.json").read_text())
    (task,) = bench["tasks"].values()
    assert bench["environment"]["device"] == "1 × Fake H100"
    assert task["rows"]["ours"]["parity"]["passed"] is True
    assert "Fake H100" in (copy / "results" / "fake" / "README.md").read_text()
    found = users(own_folders)
    assert all("spawn_main" in command for command in found), found


def rehearsed(out: Path, *parts: str, **device: Any) -> dict[str, Any]:
    """Return the rows of these parts, each of which was done in its time, scaled."""
    # Two cores may take eight times as long as sixteen.
    words = ("--tiny", "--times=8", f"--out={out}", "--parts", *parts)
    printed_by("benchmarks/on_a_gpu.py", *words, **device)
    summary = json.loads((out / "summary.json").read_text())["parts"]
    for part in parts:
        assert summary[part]["seconds"] < summary[part]["limit_seconds"], part
        assert not summary[part]["left"] or part == "sanitizers", summary[part]["left"]
    files = {part: out / f"{part}.json" for part in parts}
    return {part: json.loads(f.read_text())["rows"] for part, f in files.items() if f.exists()}


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.several_cores
@pytest.mark.parametrize(
    "parts",
    ["machine compile steps", "kernel-times transformers fp16 sanitizers"],
    ids=["ResNet-50", "others"],
)
def test_the_first_minutes_on_a_gpu_fit_in_their_time(own_folders, monkeypatch, parts):
    monkeypatch.delenv("FAKE_GPU_COMPILER")  # Inductor compiles; its kernels are counted
    counted = {"arithmetic": False, "memory_gib": 16}
    found = rehearsed(own_folders.parent / "found", *parts.split(), **counted)
    for part in {"steps", "transformers", "fp16"} & set(found):
        for row in found[part].values():
            assert row["device_ms"]["p50"] > 0 and row["host_ms"]["p50"] > 0 and row["kernels"]
    if steps := {name.split(", ")[1]: row for name, row in found.get("steps", {}).items()}:
        order = ("ours", "reduce-overhead", "by hand", "eager")
        launches = [steps[name]["launches"] for name in order]
        assert launches == sorted(set(launches))
        own = [name for name, *_ in steps["ours with own batch norms"]["kernels"]]
        assert "own kernel batch_norm_sums" in own


@pytest.mark.thorough
@pytest.mark.slow
def test_the_checks_in_the_first_minutes_on_a_gpu_pass(own_folders):
    rehearsed(own_folders.parent / "found", "kernels", "graphs", "end-to-end")
    for name in ("many-workers", "one-worker"):
        results = json.loads((own_folders.parent / "found" / name / "results.json").read_text())
        assert results["sustained"]["step_seconds"] > 0, results["sustained"]


@pytest.mark.thorough
@pytest.mark.slow
def test_a_notebook_describes_the_device_without_using_it(own_folders):
    code = """
from gallery_lib import notebook
settings = notebook.settings("resnet18", {"batch_size": 2, "image_size": 32})
notebook.show_machine()
notebook.show_data(settings)
print(settings.profile, settings.train.amp_level, settings.device, settings.autocast_dtype)
"""
    printed = printed_by("-c", code)
    assert "Fake H100" in printed and "full O1 cuda torch.bfloat16" in printed
    assert not (own_folders.parent / "users").exists()


# --------------------------------------------------------------------------------------------------
# Device memory that runs out at a chosen allocation: each command says so, and leaves nothing.

TRAINING = ("--max-steps=3", "--workers=0", "--no-evaluate", "--threads=1")
COMMANDS = {
    "train": ("launch_single_task.py", "--compiler-opt", f"--model={TINY}", *TRAINING),
    "tune": ("launch_single_task.py", "--compiler-opt", "--tune", f"--model={TINY}", *TRAINING),
    "bench": ("-m", "gallery_lib", "bench", TINY, "--variants=ours", *SHORT),
}
MODEL, FORWARD, OPTIMIZER = 3, 16, 40
"""Allocations of the tiny task, one for each tensor: of its weights, a step, and AdamW's state."""


def run_short_of_memory(
    command: str, allocation: int, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Return what a command prints when memory runs out; nothing that it wrote is in halves."""
    monkeypatch.setenv("FAKE_GPU_FAIL_ALLOCATION", str(allocation))
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    printed = printed_by(*COMMANDS[command], code=1)
    assert not list(runs.rglob("results.json")) and not list(runs.rglob("*.tmp"))
    for file in runs.rglob("*.json"):
        json.loads(file.read_text())
    return printed


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
    printed = run_short_of_memory(command, allocation, own_folders, monkeypatch)
    (error,) = [line for line in printed.splitlines() if line.startswith("error: ")]
    assert "the memory of the GPU ran out" in error and "--batch_size" in error
    assert not list((own_folders.parent / "cache").glob("tuning/*"))


@pytest.mark.thorough
@pytest.mark.slow
def test_a_bench_keeps_the_reason(own_folders, monkeypatch):
    printed = run_short_of_memory("bench", MODEL, own_folders, monkeypatch)
    assert "Not measured: " in printed
    (file,) = own_folders.rglob("bench.json")
    (task,) = json.loads(file.read_text())["tasks"].values()
    assert "the memory of the GPU ran out" in task["reason"]
