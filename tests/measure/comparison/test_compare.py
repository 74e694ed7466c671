"""Comparisons of real processes that take turns, on a task that trains in milliseconds."""

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_task
import torch
from made_comparison import results
from refusal import refused
from tiny_task import config

from gallery_lib.config import CompareConfig, LaunchConfig
from gallery_lib.errors import RunFailed
from gallery_lib.measure.comparison import interleaved, pair
from gallery_lib.measure.comparison.compare import compare
from gallery_lib.measure.comparison.interleaved import Measurement, Turns, rounds_of
from gallery_lib.measure.comparison.result import (
    OTHER_CLOCKS,
    Parity,
    break_even_steps,
    read_comparison,
)
from gallery_lib.measure.comparison.untimed import UntimedRuns
from gallery_lib.report.tables import comparison_text, folder_text
from gallery_lib.system.gpu import GpuState, at_work
from gallery_lib.system.machine_load import MachineLoad, Watch
from gallery_lib.train.results import read_steps

SHORT = CompareConfig(rounds=6, block_steps=3)


def compared(folder: Path, candidate: str, options: CompareConfig = SHORT, processes: int = 1):
    variants = {"baseline": config(), "candidate": config(candidate)}
    launch = LaunchConfig(nproc_per_node=processes)
    return compare(variants, launch, options, folder=folder, progress=False)


@pytest.mark.slow
def test_a_slower_variant_is_called_slower_and_the_result_reads_back(tmp_path: Path) -> None:
    outcome = compared(tmp_path, "SLOW")
    assert outcome.parity.passed and outcome.verdict == "slower" and outcome.speedup is not None
    assert outcome.speedup.high < 0.7  # 20 ms are many times a step of this task
    again = read_comparison(tmp_path)
    assert again == dataclasses.replace(outcome, folder=str(tmp_path))
    assert again.confidence == 0.99 and again.load is not None
    assert comparison_text(again) in folder_text(tmp_path)
    written = json.loads((tmp_path / "comparison.json").read_text())
    assert {"task", "variants", "speedup", "parity", "break_even_steps", "verdict"} <= set(written)
    steps = [line["step"] for line in read_steps(tmp_path / "baseline")]
    warmup = 3  # the task's own, which is more than the probe of fp32 needs
    assert steps == list(range(1, warmup + 6 * 3 + 1))


@pytest.mark.slow
def test_a_wrong_gradient_is_not_comparable_and_gets_no_speedup(tmp_path: Path) -> None:
    outcome = compared(tmp_path, "WRONG", CompareConfig(rounds=4, block_steps=2))
    assert (outcome.verdict, outcome.speedup) == ("not comparable", None)
    assert [check.name for check in outcome.parity.failed] == ["gradient scale"]
    assert "no speed-up is given" in comparison_text(outcome)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("candidate", "amp_level", "rounds", "parts_at"),
    [
        ("LATE_LOSS", "O0", 8, 12),
        pytest.param("LATE_LOSS", "O1", 8, 12, marks=pytest.mark.thorough),
        ("LATE_MOMENTUM", "O0", 8, 13),
        pytest.param("LATE_SKIPS", "O0", 18, 51, marks=pytest.mark.thorough),
    ],
)
def test_training_that_goes_wrong_later_is_found_with_its_step_and_gets_no_speedup(
    tmp_path: Path, candidate: str, amp_level: str, rounds: int, parts_at: int
) -> None:
    tasks = {"plain": "TASK", "late": candidate}
    variants = {name: config(task, amp_level=amp_level, lr=2e-3) for name, task in tasks.items()}
    turns = CompareConfig(rounds=rounds, block_steps=3)
    outcome = compare(variants, options_=turns, folder=tmp_path, progress=False)
    assert (outcome.verdict, outcome.speedup) == ("same at first, then not", None)
    (failed,) = outcome.parity.failed
    step = int(failed.where.removeprefix("step "))
    assert parts_at <= step <= parts_at + 7
    for text in (comparison_text(outcome), comparison_text(read_comparison(tmp_path))):
        assert "same at first, then not: its loss parts from that of plain in" in text
        assert f"at step {step} " in text and "no speed-up is given" in text
    assert json.loads((tmp_path / "comparison.json").read_text())["speedup"] is None


@pytest.mark.slow
@pytest.mark.several_cores
def test_two_processes_take_turns_as_one(tmp_path: Path) -> None:
    outcome = compared(tmp_path, "TASK", CompareConfig(rounds=4, block_steps=2), processes=2)
    assert outcome.parity.passed and outcome.baseline.world_size == 2
    assert outcome.baseline.loss == outcome.candidate.loss  # the same code on the same data


@pytest.mark.slow
@pytest.mark.several_cores
def test_schedule_and_given_weights_are_those_of_both_and_of_the_reference(tmp_path: Path) -> None:
    weights = tmp_path / "weights.pt"
    torch.save(tiny_task.build_model().state_dict(), weights)
    schedule = {"lr_schedule": "cosine", "lr_warmup_steps": 2, "log_interval": 1}
    options = config(pretrained=str(weights), **schedule)
    outcome = compare(
        {"baseline": options, "candidate": dataclasses.replace(options, compiler_opt=True)},
        LaunchConfig(nproc_per_node=2),
        CompareConfig(rounds=4, block_steps=2),
        folder=tmp_path / "comparison",
        progress=False,
    )
    assert outcome.parity.passed
    # 3 steps of warm-up, and 4 turns of 2.
    falling = [1e-2 * (1 + math.cos(math.pi * step / 9)) / 2 for step in range(9)]
    assert outcome.baseline.started_from == outcome.candidate.started_from
    assert outcome.baseline.started_from["fitted"] == 6
    for name in outcome.variants:
        lines = read_steps(tmp_path / "comparison" / name)
        rates = [line["learning_rate"] for line in lines]
        assert rates == pytest.approx([1e-2 / 3, 2e-2 / 3, *falling])


@pytest.mark.slow
def test_a_variant_that_fails_ends_the_comparison_with_the_line_of_code_that_failed(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        RunFailed,
        match=r"ValueError: planted failure\.\n  tiny_task\.py, line \d+: raise ValueError",
    ):
        compared(tmp_path, "FAILING")
    assert not (tmp_path / "comparison.json").exists()


@pytest.mark.parametrize(("megahertz", "judged"), [(1755, False), (1925, True)])
def test_forms_at_other_gpu_clocks_get_no_speedup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, megahertz: int, judged: bool
) -> None:
    rounds = [[0.5, 0.5], [0.5, 0.5]]
    idle, clocks = GpuState(345, 2619, 90, ["idleness"]), {"one": 1980, "other": megahertz}
    measured = {}
    for name, clock in clocks.items():
        busy = [GpuState(clock + more, 2619, 600, ["power cap"]) for more in (-9, 0, 5)]
        run = dataclasses.replace(results(0.5), gpu=at_work([idle, *busy]))
        measured[name] = Measurement(run, {}, rounds)
    monkeypatch.setattr(interleaved, "take_turns", lambda *_, **__: measured)
    monkeypatch.setattr(UntimedRuns, "reference", lambda self: None)
    monkeypatch.setattr(pair, "parity", lambda *_: Parity(True, []))
    monkeypatch.setattr(Watch, "seen", lambda self: MachineLoad(0.0))
    variants = {name: config() for name in clocks}
    outcome = compare(variants, folder=tmp_path, progress=False)
    assert (outcome.speedup is not None) == judged
    assert outcome.verdict == ("no measurable difference" if judged else OTHER_CLOCKS)
    assert read_comparison(tmp_path).candidate.gpu == measured["other"].results.gpu


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    hosts = LaunchConfig(nnodes=2, master_addr="192.0.2.1")
    with refused("nnodes", "nnodes=2", "one host"):
        compare({"a": config(), "b": config()}, hosts, progress=False)
    with refused("resume", "undisturbed"):
        compare({"a": config(), "b": config(resume=str(tmp_path))}, progress=False)


def test_the_first_step_of_a_turn_is_not_counted() -> None:
    assert rounds_of([9, 9, 5, 1, 2, 5, 3, 4, 5], Turns(2, 3, 3)) == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("p50", "startup", "steps"), [(0.5, 20.0, 20), (1.0, 20.0, None), (2.0, 6.0, None), (0.5, 6, 0)]
)
def test_break_even_is_where_the_longer_start_up_is_paid(
    p50: float, startup: float, steps: int | None
) -> None:
    candidate = dataclasses.replace(results(p50), startup_seconds={"total": startup})
    assert break_even_steps(results(1.0), candidate) == steps  # the baseline's takes 10 s


@pytest.mark.slow
def test_through_a_pipe_the_command_prints_few_lines_and_the_verdict_last(checkout: Path) -> None:
    task = f"{checkout}/tests/helpers/tiny_task.py:TASK"
    words = [sys.executable, "-m", "gallery_lib", "compare", "--model", task, "--workers=0"]
    words += ["--parity-steps=2", "--block-steps=3", "--rounds=4", "--amp_level=O0"]
    words += ["--batch_size=4"]
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300
    )
    lines = [line for line in done.stdout.splitlines() if line]
    assert done.returncode == 0 and len(lines) <= 40, done.stdout
    remarks = ("The machine was busy: ", "Threads waited", "The loader")
    verdict, where, show = [line for line in lines[-5:] if not line.startswith(remarks)][-3:]
    assert "PyTorch eager in fp32" in verdict and "parity passed" in verdict
    assert where.startswith("results: ") and "gallery show " in show
