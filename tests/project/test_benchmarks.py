"""The benchmarks run, once each with the least to measure, and their files hold their tables."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from refusal import check_refused_command

SHORT = {
    "startup.py": ("--only", "tts_angular", "--steps=12"),
    "checkpoints.py": ("--tasks=resnet50", "--rounds=2", "--block_steps=2", "--batch_size=2"),
    "loader.py": ("--workers=1", "--rounds=2", "--batches=1"),
}
"""Options by script."""


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("script", SHORT)
def test_a_benchmark_measures_and_its_file_has_the_table(
    script: str, command: Callable[..., Any], tmp_path: Path
) -> None:
    out = tmp_path / "new" / "figures.json"
    done = command(script, *SHORT[script], f"--out={out}")
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr
    written = json.loads(out.read_text())
    assert {"date", "command", "environment", "shown"} <= set(written)
    header, row = written["shown"]["table"]
    assert len(header) == len(row) and header[0] in done.stdout
    if script == "checkpoints.py":
        task = written["tasks"]["resnet50"]
        blocks = {form: len(blocks) for form, blocks in task["step_seconds"].items()}
        assert blocks == {"without": 2, "with": 2}
        # Weights and two states of AdamW: 25.6 million values each.
        assert task["checkpoint_bytes"] == pytest.approx(3 * 25.6e6 * 4, rel=0.02)


@pytest.mark.thorough
@pytest.mark.slow
def test_an_option_is_measured_in_turns(command: Callable[..., Any], checkout: Path) -> None:
    option, sizes = "compiler.enabled", ("--image_size=32", "--batch_size=2")
    of_option = (option, "--model=resnet18", *sizes, "--rounds=2", "--block_steps=2")
    done = command("one_option.py", *of_option)
    assert done.returncode == 0, done.stderr
    without, with_it, *lines = done.stdout.splitlines()
    assert without.startswith("without: ") and "inductor" not in without
    assert with_it.startswith("with: ") and "inductor" in with_it
    for line, what in zip(lines, ("seconds", "processor seconds"), strict=True):
        assert line.startswith(f"resnet18, {what} of a step: without 0.")
        assert re.search(rf"{option} \d\.\d\d× \(\d\.\d\d to \d\.\d\d\)$", line), line


def tensors(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


def test_a_row_of_kernels_can_be_written_and_shown(benchmark_module: Callable[[str], Any]) -> None:
    kernels, device = benchmark_module("kernels"), torch.device("cpu")
    row = kernels.timed(kernels.CASES["pack int8"](device, True), device, rounds=3)
    row = json.loads(json.dumps(row, allow_nan=False))
    assert row["seconds"]["ours"]["p50"] > 0 and row["times_as_fast_as"]["copy"]["ratio"] > 0
    assert kernels.rows_of({"pack int8": row})[1][0] == "pack int8"


@pytest.mark.thorough
@pytest.mark.slow
def test_kernels_and_eager_do_the_same_work(benchmark_module: Callable[[str], Any]) -> None:
    for name, build in benchmark_module("kernels").CASES.items():
        case = build(torch.device("cpu"), True)
        tolerance = 3e-2 if name.startswith(("batch_norm", "cross", "prepare")) else 1e-4
        # Where bf16 rounds once or twice on the way to 0, ReLU passes a gradient on one side only.
        # Then a channel's sums differ.
        alike = 0.95 if name.startswith("batch_norm") else 1.0
        for _ in range(2):
            for ours, eager in zip(tensors(case.ours()), tensors(case.eager()), strict=True):
                same = torch.isclose(ours.double(), eager.double(), rtol=tolerance, atol=tolerance)
                assert same.double().mean() >= alike, name


@pytest.mark.slow
def test_a_planted_fault_is_found(benchmark_module: Callable[[str], Any]) -> None:
    trust = benchmark_module("trust")
    found = [trust.run_comparison("wrong gradient, O0", 0, 4)]
    assert found[0]["verdict"] == "not comparable"
    rows = {row[0]: row for row in trust.rows_of(found)}
    assert rows["wrong gradient, O0"][2:4] == ["1 of 1", "–"]
    assert rows["same"][-1] == "not finished"


def test_the_planted_tasks_differ_from_the_right_ones_in_the_fault_alone(
    benchmark_module: Callable[[str], Any],
) -> None:
    planted = benchmark_module("planted")
    model = planted.WRONG_O1.build_model()
    right = planted.tasks.get("resnet50").build_model()
    assert [p.shape for p in model.parameters()] == [p.shape for p in right.parameters()]
    hooked = [name for name, p in model.named_parameters() if p._backward_hooks]
    assert hooked == [planted.WRONG_PARAMETER]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("one_option.py", "memory.layout"), "`memory.layout` is no option that is on or off"),
        (("own_script.py", "--data=/no/such/folder"), "--data /no/such/folder"),
        (("startup.py", "--only=resnet51"), "resnet51"),
        (("startup.py", "--out", "TMP/taken/figures.json"), "cannot be made"),
        (("loader.py", "--rounds=0"), "rounds"),
        (("two_checkouts.py", "--before=/no/such"), "--before must be a checkout"),
        (("kernels.py",), "CUDA device"),
        (("on_a_gpu.py",), "CUDA device"),
        (("network.py", "run", "missing.json"), "missing.json"),
        (("network.py", "record", "--model", "resnet51", "--out", "x.json"), "`resnet50`"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_bad_input_ends_with_2_before_anything_is_measured(
    benchmark_module: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    words: tuple[str, ...],
    said: str,
) -> None:
    (tmp_path / "taken").write_text("a file, and no folder")
    script = benchmark_module(words[0].removesuffix(".py"))
    monkeypatch.setattr(sys, "argv", [word.replace("TMP", str(tmp_path)) for word in words])
    try:
        body = getattr(script, "main", None) or script.run
        code = script.figures_file.exit_code(body)
    except SystemExit as ended:  # of argparse
        code = ended.code
    shown = capsys.readouterr()
    check_refused_command(code, shown.err.splitlines()[-1], said)
    assert shown.out == "" and "Traceback" not in shown.err
