"""benchmarks/network.py: turns and their text, real training, replays on a lab."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from measure.test_timeline import TIMELINE
from refusal import refused

from gallery_lib.comm.topology import Topology
from gallery_lib.comm.tuner import PLAIN
from gallery_lib.config import Comm, LabConfig, ReplayConfig

TWO_BY_TWO = Topology(((0, 1), (2, 3)))
TINY_TASK = Path(__file__).resolve().parent.parent / "helpers" / "tiny_task.py"


def test_turns_go_to_and_fro_and_figures_compare_with_ddps_own_way(
    benchmark_module: Callable[[str], Any],
) -> None:
    ranks = benchmark_module("network_ranks")
    ways = {PLAIN: Comm(), "other": Comm(streams=2)}
    assert ranks.order_of(ways, 3) == [PLAIN, "other", "other", PLAIN, PLAIN, "other"]
    found = ranks.figures(ways, {PLAIN: [[0.2, 0.2]] * 4, "other": [[0.1, 0.1]] * 4})
    assert found["other"]["speedup"]["ratio"] == pytest.approx(2)
    assert found["other"]["speedup"]["verdict"] == "faster" and "speedup" not in found[PLAIN]
    assert ranks.text(found, 32, [4, 4], "GPU").splitlines()[1] == (
        "  8 GPUs -- 2M/8G:  p50:  0.200s 160/s  p75:  0.200s 160/s  p90:  0.200s 160/s  p95:  "
        "0.200s 160/s  (all devices, p50: 1280/s)"
    )


def test_ways_are_ddps_own_and_those_of_each_wire_format(
    benchmark_module: Callable[[str], Any],
) -> None:
    ways = benchmark_module("network_ranks").ways_of_replay
    found = ways(ReplayConfig(wires="exact,int8"), TWO_BY_TWO)
    assert next(iter(found)) == PLAIN and found[PLAIN] == Comm()
    assert {way.wire for name, way in found.items() if name.startswith("int8: ")} == {"int8"}
    one = ways(ReplayConfig(wires="bf16", only="bf16: views"), TWO_BY_TWO)
    assert list(one) == [PLAIN, "bf16: views"]
    with refused("only", "'vews'", "`views`"):
        ways(ReplayConfig(only="vews"), TWO_BY_TWO)
    with refused("wire", "'int4'"):
        ways(ReplayConfig(wires="int4"), TWO_BY_TWO)


def test_a_stretched_lab_has_slower_links_and_what_does_not_fit_is_not_started(
    benchmark_module: Callable[[str], Any],
) -> None:
    network = benchmark_module("network")
    lab = network.stretched(LabConfig(rate="1gbit"), 8.0)
    assert network.link_rate.bits_per_second(lab.rate) == 125_000_000
    gradient = dataclasses.replace(TIMELINE.gradients[0], shape=(10**12,))
    large = dataclasses.replace(TIMELINE, gradients=(gradient,))
    assert network.too_large(TIMELINE, "exact", 1, 1) == ""
    assert network.too_large(large, "exact", 4, 2).startswith("small needs about ")


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
