"""The benchmark of checkpoints measures blocks in turns, and its file has a table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from published_table import table_of


@pytest.mark.slow
@pytest.mark.whole_machine
def test_the_benchmark_measures_both_forms_and_its_file_has_a_table(
    checkout: Path, tmp_path: Path
) -> None:
    out = tmp_path / "checkpoints.json"
    options = ["--tasks=resnet50", "--rounds=2", "--block_steps=2", "--batch_size=2"]
    script = str(checkout / "benchmarks" / "checkpoints.py")
    done = subprocess.run(
        [sys.executable, script, *options, f"--out={out}"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    task = json.loads(out.read_text())["tasks"]["resnet50"]
    assert {form: len(blocks) for form, blocks in task["step_seconds"].items()} == {
        "without": 2,
        "with": 2,
    }
    assert len(task["copy_seconds"]) == len(task["writing_seconds"]) == 2
    # Weights, twice, and two states of AdamW: 25.6 million values each.
    assert task["checkpoint_bytes"] == pytest.approx(4 * 25.6e6 * 4, rel=0.02)
    table = table_of(out, "checkpoint_table", "checkpoints", checkout)
    assert "| resnet50 |" in table
