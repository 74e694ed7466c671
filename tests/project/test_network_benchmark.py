"""benchmarks/network.py: turns and their text, real training, replays on a lab."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gallery_lib.comm.tuner import PLAIN

TINY_TASK = Path(__file__).resolve().parent.parent / "helpers" / "tiny_task.py"


@pytest.mark.thorough
@pytest.mark.slow
def test_real_training_in_turns_prints_step_times_by_percentile_and_writes_figures(
    checkout: Path, command: Callable[..., Any], tmp_path: Path
) -> None:
    """`command` for its environment."""
    figures = tmp_path / "figures.json"

    def run(processes: int, *options: str) -> subprocess.CompletedProcess[str]:
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
        script = [str(checkout / "benchmarks" / "network.py"), "train"]
        short = ["--model", f"{TINY_TASK}:TASK", "--rounds", "4", "--block_steps", "1"]
        line = [sys.executable, *torchrun, *script, *short, *options]
        return subprocess.run(line, capture_output=True, text=True, timeout=150)

    done = run(2, "--streams=2", "--bucket_views", "--early_steps", f"--out={figures}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(
        r"  2 CPUs -- 1M/2C:  p50:  \d\.\d{3}s [\d.]+/s  p75: .*\(all devices, p50: [\d.]+/s\)",
        done.stdout,
    )
    found = json.loads(figures.read_text())
    assert set(found["ways"]) == {PLAIN, "accelerated"} and found["early_steps"]
    assert found["ways"]["accelerated"]["speedup"]["low"] > 0
    alone = run(1)
    assert alone.returncode == 0, alone.stderr
    assert "nobody to share gradients with" in alone.stdout and "1M/1C:" in alone.stdout


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.usefixtures("needs_a_lab")
def test_what_is_recorded_is_replayed_on_a_lab(command: Callable[..., Any], tmp_path: Path) -> None:
    timeline, figures = tmp_path / "tiny.json", tmp_path / "figures.json"
    own = ("--model", f"{TINY_TASK}:TASK", "--workers=0", "--threads=1")
    done = command("network.py", "record", *own, "--out", timeline)
    assert done.returncode == 0, done.stdout + done.stderr
    short = ("--rounds=4", "--block_steps=1", "--rate=100mbit", "--stretch=2", "--only=views")
    done = command("network.py", "run", timeline, *short, "--out", figures)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "time-dilated replay (stretch 2) on an emulated link of 100mbit" in done.stdout
    assert done.stdout.count("2 CPUs -- 2M/2C:  p50:  ") == 2
    found = json.loads(figures.read_text())
    assert set(found["ways"]) == {PLAIN, "views"}
    assert found["what_it_is"].startswith("Time-dilated replay on an emulated link")
