"""The benchmark of rooflines measures tasks, and its file has a table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from published_table import table_of


def run(checkout: Path, *options: str) -> subprocess.CompletedProcess[str]:
    script = str(checkout / "benchmarks" / "rooflines.py")
    return subprocess.run([sys.executable, script, *options], capture_output=True, text=True)


@pytest.mark.slow
def test_a_task_is_measured_and_its_file_has_a_table(checkout: Path, tmp_path: Path) -> None:
    out = tmp_path / "rooflines.json"
    done = run(checkout, "--only", "tts_angular", "--rounds=1", f"--out={out}")
    assert done.returncode == 0, done.stderr
    assert "tts_angular: ours reaches " in done.stdout
    row = json.loads(out.read_text())["tasks"]["tts_angular"]
    assert row["reason"] is None and row["sizes"]["batch_size"] == 64
    shares = [sum(group[key] for group in row["groups"]) for key in ("limit_seconds", "seconds")]
    assert shares[0] > 0 and shares[1] == pytest.approx(row["profiled_seconds"]["median"], rel=1e-6)
    table = table_of(out, "roofline_table", "rooflines", checkout)
    assert "| tts_angular | batch size 64" in table and f"{shares[0] / shares[1]:.0%}" in table


def test_no_rounds_and_unknown_tasks_are_refused(checkout: Path, tmp_path: Path) -> None:
    out = tmp_path / "rooflines.json"
    for words, said in ((["--rounds=0"], "rounds"), (["--only=resnet51"], "resnet51")):
        done = run(checkout, *words, f"--out={out}")
        assert done.returncode == 2
        assert said in done.stderr and "Traceback" not in done.stderr
    assert not out.exists()
