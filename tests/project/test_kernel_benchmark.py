"""benchmarks/kernels.py compares the same work, and says so where there is no GPU.

A row can be measured and shown.
"""

from __future__ import annotations

import importlib.util
import json

import pytest
import torch
from refusal import check_refused_command


@pytest.fixture
def benchmark(checkout, monkeypatch):
    """Return benchmarks/kernels.py as a module."""
    monkeypatch.syspath_prepend(str(checkout / "benchmarks"))
    spec = importlib.util.spec_from_file_location(
        "kernel_benchmark", checkout / "benchmarks" / "kernels.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tensors(result) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


def test_without_a_gpu_it_ends_with_exit_code_2_and_one_message(benchmark, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["kernels.py"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code = benchmark.exit_code_of(benchmark.run, error_prefix="kernels.py", interrupted="")
    said = capsys.readouterr().err
    check_refused_command(code, said, "CUDA device")
    assert said.startswith("kernels.py: ") and said.count("\n") == 1


def test_a_row_of_figures_can_be_written_and_shown(benchmark):
    case = benchmark.CASES["pack int8"](torch.device("cpu"), True)
    row = json.loads(
        json.dumps(
            benchmark.timed(case, torch.device("cpu"), rounds=3, may_compile=False), allow_nan=False
        )
    )
    assert row["left_out"] == {"compiled": "not measured: no time left"}
    assert row["seconds"]["ours"]["p50"] > 0 and row["times_as_fast_as"]["copy"]["ratio"] > 0
    assert "pack int8" in benchmark._table({"pack int8": row})


@pytest.mark.slow
def test_ours_and_eager_do_the_same_work(benchmark):
    for name, build in benchmark.CASES.items():
        case = build(torch.device("cpu"), True)
        tolerance = 3e-2 if name.startswith(("batch_norm", "cross", "prepare")) else 1e-4
        # Where bf16 rounds once or twice on the way to 0, ReLU passes a gradient on one side only.
        # Then a channel's sums differ.
        alike = 0.95 if name.startswith("batch_norm") else 1.0
        for _ in range(2):
            for ours, eager in zip(tensors(case.ours()), tensors(case.eager()), strict=True):
                assert (
                    torch.isclose(ours.double(), eager.double(), rtol=tolerance, atol=tolerance)
                    .double()
                    .mean()
                    >= alike
                ), name
