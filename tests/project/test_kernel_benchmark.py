"""benchmarks/kernels.py compares the same work, and a row can be measured and shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch


def tensors(result: Any) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


def test_a_row_of_figures_can_be_written_and_shown(benchmark_module: Callable[[str], Any]) -> None:
    kernels, device = benchmark_module("kernels"), torch.device("cpu")
    row = kernels.timed(kernels.CASES["pack int8"](device, True), device, rounds=3)
    row = json.loads(json.dumps(row, allow_nan=False))
    assert row["seconds"]["ours"]["p50"] > 0 and row["times_as_fast_as"]["copy"]["ratio"] > 0
    assert kernels.rows_of({"pack int8": row})[1][0] == "pack int8"


@pytest.mark.thorough
@pytest.mark.slow
def test_ours_and_eager_do_the_same_work(benchmark_module: Callable[[str], Any]) -> None:
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
