"""The benchmark of host time works without a GPU, and finds what graphs save."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from fake_gpu.running import ROOT


@pytest.mark.slow
def test_the_host_queues_a_captured_step_as_two_launches(tmp_path):
    out = tmp_path / "host-time.json"
    variants = ["inductor + graphs", "ours", "eager"]
    command = ["benchmarks/host_time.py", "--rounds", "1", "--steps", "3", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, *command, "--tasks", "resnet18", "--variants", *variants],
        cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())["tasks"]["resnet18"]["summary"]
    assert list(found) == variants and "over inductor + graphs" in done.stdout
    assert found["ours"]["launches"] < found["inductor + graphs"]["launches"]
    assert found["inductor + graphs"]["ratios"] == [1.0] and found["eager"]["host_ms"] > 0
