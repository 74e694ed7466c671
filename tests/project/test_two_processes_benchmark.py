"""The benchmark of two processes compares tasks, and its file has a table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def run(checkout: Path, *options: str) -> subprocess.CompletedProcess[str]:
    script = str(checkout / "benchmarks" / "two_processes.py")
    return subprocess.run([sys.executable, script, *options], capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.whole_machine
def test_a_task_is_compared_and_its_file_has_a_table(checkout: Path, tmp_path: Path) -> None:
    out = tmp_path / "two-processes.json"
    done = run(checkout, "--only", "tts_angular", f"--out={out}")
    assert done.returncode == 0, done.stderr
    content = json.loads(out.read_text())
    assert content["processes"] == 2
    (comparison,) = content["tasks"]["tts_angular"]
    assert comparison["reason"] is None and comparison["parity"]["passed"]
    for results in comparison["variants"].values():
        assert results["environment"]["threads"] == 1
        assert results["config"].keys().isdisjoint({"run_dir"})
    table = subprocess.run(
        [
            sys.executable,
            "-c",
            "import json, sys, types; from page_tables import two_processes\n"
            "file = types.SimpleNamespace(content=json.load(open(sys.argv[1])))\n"
            "print(two_processes([file]))",
            str(out),
        ],
        cwd=checkout / "benchmarks",
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(checkout), "PATH": "/usr/bin:/bin"},
    ).stdout
    assert "| tts_angular |" in table and " → " in table


@pytest.mark.parametrize("processes", ["0", "4096"])
def test_processes_that_the_machine_has_no_cores_for_are_refused(
    checkout: Path, processes: str
) -> None:
    done = run(checkout, "--nproc_per_node", processes)
    assert done.returncode == 2
    assert f"nproc_per_node is {processes}, and this machine has" in done.stderr
    assert "Traceback" not in done.stderr
