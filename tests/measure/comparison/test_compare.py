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
from refusal import refused
from tiny_task import config

from gallery_lib.config import CompareConfig, LaunchConfig
from gallery_lib.errors import RunFailed
from gallery_lib.measure.comparison.compare import compare
from gallery_lib.measure.comparison.interleaved import Turns, rounds_of
from gallery_lib.measure.comparison.result import break_even_steps, read_comparison
from gallery_lib.report.tables import comparison_text, folder_text
from gallery_lib.train.results import Results, read_steps

SHORT = CompareConfig(rounds=6, block_steps=3)


def compared(folder: Path, candidate: str, options: CompareConfig = SHORT, processes: int = 1):
    variants = {"baseline": config(), "candidate": config(candidate)}
    launch = LaunchConfig(nproc_per_node=processes)
    return compare(variants, launch, options, folder=folder, progress=False)


@pytest.mark.slow
def test_a_slower_variant_is_called_slower_and_the_result_reads_back(tmp_path: Path) -> None:
    outcome = compared(tmp_path, "SLOW")
    assert outcome.parity.passed
    assert outcome.verdict == "slower"
    assert outcome.speedup is not None
    assert outcome.speedup.high < 0.7  # 20 ms are many times a step of this task
    again = read_comparison(tmp_path)
    assert again == dataclasses.replace(outcome, folder=str(tmp_path))
    assert again.confidence == 0.99
    assert again.load is not None
    assert comparison_text(again) in folder_text(tmp_path)
    written = json.loads((tmp_path / "comparison.json").read_text())
    assert {"task", "variants", "speedup", "parity", "break_even_steps", "verdict"} <= set(written)
    lines = (tmp_path / "baseline" / "steps.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    warmup = 3  # the task's own, which is more than the probe of fp32 needs
    assert steps == list(range(1, warmup + 6 * 3 + 1))


@pytest.mark.slow
def test_a_wrong_gradient_is_not_comparable_and_gets_no_speedup(tmp_path: Path) -> None:
    outcome = compared(tmp_path, "WRONG", CompareConfig(rounds=4, block_steps=2))
    assert outcome.verdict == "not comparable"
    assert outcome.speedup is None
    assert [c.name for c in outcome.parity.checks if not c.passed] == ["gradient scale"]
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
    (failed,) = [check for check in outcome.parity.checks if not check.passed]
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
    assert outcome.parity.passed
    assert outcome.baseline.world_size == 2
    assert outcome.baseline.loss == outcome.candidate.loss  # the same code on the same data


@pytest.mark.slow
@pytest.mark.several_cores
def test_schedule_and_given_weights_are_those_of_both_and_of_the_reference(
    tmp_path: Path,
) -> None:
    torch.save(tiny_task.build_model().state_dict(), tmp_path / "weights.pt")
    options = config(
        pretrained=str(tmp_path / "weights.pt"),
        lr_schedule="cosine",
        lr_warmup_steps=2,
        log_interval=1,
    )
    outcome = compare(
        {"baseline": options, "candidate": dataclasses.replace(options, compiler_opt=True)},
        LaunchConfig(nproc_per_node=2),
        CompareConfig(rounds=4, block_steps=2),
        folder=tmp_path / "comparison",
        progress=False,
    )
    assert outcome.parity.passed
    baseline, candidate = outcome.variants.values()
    assert baseline.started_from == candidate.started_from
    assert baseline.started_from["fitted"] == 6
    rates, others = (
        [line["learning_rate"] for line in read_steps(tmp_path / "comparison" / name)]
        for name in outcome.variants
    )
    assert rates == others
    # 3 steps of warm-up, and 4 turns of 2.
    falling = [1e-2 * (1 + math.cos(math.pi * step / 9)) / 2 for step in range(9)]
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


def test_what_cannot_be_compared_is_refused() -> None:
    hosts = LaunchConfig(nnodes=2, master_addr="192.0.2.1")
    with refused("nnodes", "nnodes=2", "one host"):
        compare({"a": config(), "b": config()}, hosts, progress=False)


def test_the_first_step_of_a_turn_is_not_counted() -> None:
    assert rounds_of([9, 9, 5, 1, 2, 5, 3, 4, 5], Turns(2, 3, 3)) == [[1, 2], [3, 4]]


def results(p50: float, startup: float) -> Results:
    return Results(
        task="t", config={}, environment={}, world_size=1, nodes=1, steps=1, warmup_steps=0,
        loss={}, metrics={}, step_seconds={"p50": p50},
        samples_per_second={}, startup_seconds={"total": startup}, page_faults=0.0,
        phase_seconds={}, peak_memory_bytes={}, skipped_steps=0, techniques={},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("baseline", "candidate", "steps"),
    [
        ((1.0, 5.0), (0.5, 15.0), 20),
        ((1.0, 5.0), (1.0, 15.0), None),
        ((1.0, 5.0), (2.0, 1.0), None),
        ((1.0, 9.0), (0.5, 5.0), 0),
    ],
)
def test_break_even_is_where_the_longer_start_up_is_paid(
    baseline: tuple, candidate: tuple, steps: int | None
) -> None:
    assert break_even_steps(results(*baseline), results(*candidate)) == steps


# --------------------------------------------------------------------------------------------------
# The command


def command(checkout: Path, *words: str) -> list[str]:
    task = f"{checkout}/tests/helpers/tiny_task.py:TASK"
    start = [sys.executable, "-m", "gallery_lib", "compare", "--model", task, "--workers=0"]
    return [*start, "--parity-steps=2", "--block-steps=3", *words]


@pytest.mark.slow
def test_through_a_pipe_the_command_prints_few_lines_and_the_verdict_last(checkout: Path) -> None:
    words = command(checkout, "--rounds=4", "--amp_level=O0", "--batch_size=4")
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300
    )
    lines = [line for line in done.stdout.splitlines() if line]
    assert done.returncode == 0 and len(lines) <= 40, done.stdout
    remarks = ("The machine was busy: ", "The loader")
    verdict, results, show = [line for line in lines[-5:] if not line.startswith(remarks)][-3:]
    assert "PyTorch eager in fp32" in verdict and "parity passed" in verdict
    assert results.startswith("results: ") and "gallery show " in show
