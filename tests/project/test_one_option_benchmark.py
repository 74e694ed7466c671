"""The benchmark of one option measures both forms, and refuses what is no switch."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


def run(checkout: Path, *options: str) -> subprocess.CompletedProcess[str]:
    script = str(checkout / "benchmarks" / "one_option.py")
    return subprocess.run([sys.executable, script, *options], capture_output=True, text=True)


@pytest.mark.slow
def test_both_forms_are_measured_in_seconds_and_processor_seconds(checkout: Path) -> None:
    option = "compute.batch_norm_kernels"
    sizes = ("--model=resnet18", "--image_size=32", "--batch_size=2")
    done = run(checkout, option, *sizes, "--rounds=2", "--block_steps=2")
    assert done.returncode == 0, done.stderr
    without, with_it, *lines = done.stdout.splitlines()
    assert without.startswith("without: ") and "batch norm" not in without
    assert with_it.startswith("with: ") and "batch norm" in with_it
    for line, what in zip(lines, ("seconds", "processor seconds"), strict=True):
        assert line.startswith(f"resnet18, {what} of a step: without 0.")
        assert re.search(rf"{option} \d\.\d\d× \(\d\.\d\d to \d\.\d\d\)$", line), line


@pytest.mark.parametrize(
    ("option", "known"),
    [("compiler.vector_dropuot", "Did you mean `compiler.vector_dropout`?"), ("memory.layout", "")],
)
def test_what_is_no_switch_is_refused(checkout: Path, option: str, known: str) -> None:
    done = run(checkout, option)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: OPTION: `{option}` is no option that is on or off.")
    assert known in done.stderr and "Known: compute.fp16, " in done.stderr
