"""The benchmark of two processes compares tasks, and its file has a table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from published_table import table_of


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
    table = table_of(out, "page_tables", "two_processes", checkout)
    assert "| tts_angular |" in table and " → " in table


@pytest.mark.parametrize("processes", ["0", "4096"])
def test_processes_that_the_machine_has_no_cores_for_are_refused(
    checkout: Path, processes: str
) -> None:
    done = run(checkout, "--nproc_per_node", processes)
    assert done.returncode == 2
    assert f"nproc_per_node is {processes}, and this machine has" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_runs_and_figures_of_other_processes_are_refused(checkout: Path, tmp_path: Path) -> None:
    out = tmp_path / "two-processes.json"
    kept = json.dumps({"processes": 2, "tasks": {}})
    out.write_text(kept)
    for options, said in (
        (["--runs=0"], "runs is 0. Give a number from 1 on."),
        (["--nproc_per_node=1", f"--out={out}"], "has figures of 2 process(es)"),
    ):
        done = run(checkout, *options)
        assert done.returncode == 2
        assert said in done.stderr and "Traceback" not in done.stderr
    assert out.read_text() == kept
