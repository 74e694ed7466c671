"""Commands that start processes of their own run on the fake device as they will on a GPU."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from fake_gpu.running import ROOT, run


@pytest.mark.slow
def test_the_first_ten_minutes_on_a_gpu_are_not_lost(tmp_path):
    out = tmp_path / "figures.json"
    done = run(
        "benchmarks/on_a_gpu.py", "--tiny", "--second", "--out", str(out),
        "--tasks", "timm_vision_transformer", "--variants", "eager", "channels_last + fused",
        everywhere=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    figures = json.loads(out.read_text())
    assert figures["device"]["name"] == "Fake H100"
    rows = {(row["variant"], row["batch"]): row for row in figures["steps"]}
    assert len(rows) == 4 and not figures["not_run"]
    for row in rows.values():
        assert row["launches"] > 100 and row["host_ms"]["p50"] > 0
    eager, by_hand = rows["eager", "2"], rows["channels_last + fused", "2"]
    assert by_hand["losses"] == pytest.approx(eager["losses"], rel=0.05)
    assert by_hand["launches"] < eager["launches"]


@pytest.mark.slow
def test_a_machine_without_a_gpu_is_told_so(tmp_path):
    done = subprocess.run(
        [sys.executable, "benchmarks/on_a_gpu.py"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "needs a CUDA device" in done.stderr
    assert "Traceback" not in done.stderr
