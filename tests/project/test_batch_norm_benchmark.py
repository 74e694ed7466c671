"""The benchmark of own batch norms measures both forms, and refuses what has none."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


def run(checkout: Path, *options: str) -> subprocess.CompletedProcess[str]:
    script = str(checkout / "benchmarks" / "batch_norms.py")
    return subprocess.run([sys.executable, script, *options], capture_output=True, text=True)


@pytest.mark.slow
def test_both_forms_are_measured_in_seconds_and_processor_seconds(checkout: Path) -> None:
    options = ("--task=resnet18", "--image_size=32", "--batch_size=2", "--rounds=2")
    done = run(checkout, *options, "--block_steps=2")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for line, what in zip(lines, ("seconds", "processor seconds"), strict=True):
        assert line.startswith(f"resnet18, {what} of a step: the compiler's 0.")
        assert re.search(r"own batch norms \d\.\d\d× \(\d\.\d\d to \d\.\d\d\)$", line), line


def test_a_task_without_images_is_refused(checkout: Path) -> None:
    done = run(checkout, "--task=hf_Bert")
    assert done.returncode == 2 and done.stderr == "error: --task hf_Bert takes no images.\n"
