"""Steps on a GPU are measured without one, and graphs save launches."""

from __future__ import annotations

import json

import pytest
from fake_gpu.running import run


@pytest.mark.thorough
@pytest.mark.slow
def test_the_host_queues_a_captured_step_as_two_launches():
    launches = {}
    for variant in ("inductor + graphs", "ours"):
        words = ("--tasks", "resnet50", "--variants", variant, "--batches", "8")
        device = {"everywhere": True, "arithmetic": False, "memory_gib": 16}
        done = run("benchmarks/on_a_gpu.py", *words, "--tiny", **device)
        (line,) = (line for line in done.stdout.splitlines() if line.startswith('{"task"'))
        found = json.loads(line)
        assert "error" not in found and found["host_ms"]["p50"] > 0, found
        launches[variant] = found["launches"]
    assert launches["ours"] < launches["inductor + graphs"]
