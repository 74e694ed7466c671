"""`gallery run` with real kernels: each fault gets its status, and nothing is left running."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest
from notebooks.batch.runner import Runner, read
from tiny_notebooks import write_notebook

pytestmark = pytest.mark.slow
DEADLINE_SECONDS = 15


FAULTS = {
    "dies": [
        "import os, subprocess\nchild = subprocess.Popen(['sleep', '500'], start_new_session=True)",
        "os.kill(os.getpid(), 9)",
        "print('never')",
    ],
    "hungry": ["blocks = []", "raise MemoryError('planted')", "print('never')"],
    "leaves": ["1 + 1", "raise SystemExit(0)", "print('never')"],
    "raises": ["1 + 1", "raise ValueError('planted')", "print('never')"],
    "sleeps": [
        "import subprocess, time",
        "child = subprocess.Popen(['sleep', '500'], start_new_session=True)\ntime.sleep(500)",
        "print('never')",
    ],
    "unharmed": ["print('still here')"],
}


@dataclass
class Faults:
    code: int
    output: str
    left: list[psutil.Process]
    out: Path
    notebooks: Path


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory, runner_for: Callable[[], Runner]) -> Faults:
    """Run one batch of a notebook for each fault, and a last one in which nothing is wrong."""
    folder, runner = tmp_path_factory.mktemp("faults"), runner_for()
    paths = [
        str(write_notebook(folder / "notebooks", name, *sources))
        for name, sources in FAULTS.items()
    ]
    code, output = runner.run(folder / "out", *paths, "--deadline", str(DEADLINE_SECONDS))
    return Faults(code, output, runner.left(), folder / "out", folder / "notebooks")


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("dies", "kernel died", "the kernel was gone, in cell 2 of 3, `os.kill(os.getpid(), 9)`"),
        ("hungry", "failed", "MemoryError: planted, in cell 2 of 3"),
        (
            "leaves",
            "failed",
            "1 of 3 code cells never ran; a cell left with SystemExit; the first is cell 3 of 3",
        ),
        ("raises", "failed", "ValueError: planted"),
        (
            "sleeps",
            "timeout",
            f"still running at its deadline of {DEADLINE_SECONDS} s, in cell 2 of 3",
        ),
        ("unharmed", "passed", "None"),
    ],
)
def test_each_fault_has_its_status_and_reason_and_the_others_are_unaffected(
    faults: Faults, name: str, status: str, reason: str
) -> None:
    record = read(faults.out)["notebooks"][name]
    assert record["status"] == status
    assert reason in str(record["reason"])
    # The log has the notebook's words, not papermill's insides.
    assert any("Cell" in line for line in record["log_tail"])
    assert f"{name}: {status}" in faults.output
    assert faults.code == 1


def test_no_process_of_any_of_them_is_left_and_the_other_reports_say_the_same(
    faults: Faults,
) -> None:
    assert faults.left == []
    (suite,) = ElementTree.parse(faults.out / "report.xml").getroot()
    counts = [suite.get(name) for name in ("tests", "failures", "errors", "skipped")]
    assert counts == ["6", "3", "2", "0"]
    assert "1 of 6 passed; 3 failed, 1 timeout, 1 kernel died" in faults.output
    assert "ValueError: planted" in (faults.out / "report.html").read_text()
