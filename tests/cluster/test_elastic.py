"""Hosts come and go: a run of MIN:MAX hosts goes on from its last checkpoint."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import bucket_task
import pytest

from gallery_lib.cluster import Lab
from gallery_lib.system.processes import end_supervised
from gallery_lib.train.results import read_results
from gallery_lib.train.run_log import last_step

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.several_cores]
INTERVAL = 20


def _start(lab: Lab, host: int, run_dir: Path, checkout: Path, steps: int) -> subprocess.Popen[str]:
    words = [
        f"--model={Path(bucket_task.__file__)}:SLOW",
        *["--amp_level=O0", "--workers=0", "--threads=1", "--log_interval=1", "--rank_timeout=8"],
        *[f"--max_steps={steps}", f"--run_dir={run_dir}", f"--checkpoint_every={INTERVAL}"],
        *["--nnodes=1:2", f"--node_rank={host}", "--max_restarts=3"],
        f"--rdzv_endpoint={lab.hosts[0].address}:29400",
    ]
    variables = {"GLOO_SOCKET_IFNAME": "eth0", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    command = [sys.executable, str(checkout / "launch_single_task.py"), *words]
    return lab.popen(host, command, environment=variables, stdout=-1, stderr=-2, text=True)


def _wait(
    condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 120
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stdout.read() if process.stdout else ""
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["killed", "cut"])
def test_a_run_goes_on_without_a_lost_host_and_with_one_that_joins(
    tmp_path: Path, checkout: Path, how: str
) -> None:
    run_dir, steps = tmp_path / "run", 1200
    with Lab(hosts=2, rate="1gbit") as lab:
        first = _start(lab, 0, run_dir, checkout, steps)
        second = _start(lab, 1, run_dir, checkout, steps)
        try:
            log = run_dir / "log-rank0.txt"
            _wait(lambda: last_step(run_dir) >= 2 * INTERVAL + 5, first)
            assert (run_dir / "log-rank1.txt").exists()
            if how == "killed":
                second.kill()
            else:
                lab.cut(1)
            _wait(lambda: "1 processes go on, and it was of 2" in log.read_text(), first)
            alone = last_step(run_dir)
            _wait(lambda: last_step(run_dir) >= alone + INTERVAL, first)
            if how == "cut":
                end_supervised(second)
                lab.mend(1)
            second = _start(lab, 1, run_dir, checkout, steps)
            _wait(lambda: "2 processes go on, and it was of 1" in log.read_text(), first)
            output, _ = first.communicate(timeout=240)
            assert first.returncode == 0, output
        finally:
            end_supervised(first)
            end_supervised(second)
    results = read_results(run_dir)
    assert results.steps == steps and results.world_size == 2
    processes = [(one["processes_before"], one["processes"]) for one in results.interruptions]
    assert processes == [(2, 1), (1, 2)]
    # The interval, and the checkpoint that was being written.
    assert all(one["lost_steps"] <= 2 * INTERVAL for one in results.interruptions)
