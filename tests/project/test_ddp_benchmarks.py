"""benchmarks/ddp_*.py: turns, figures and their text, real training, and a replay on a lab.

Sweeps have tests of their own (test_ddp_sweep.py).
"""

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
from measure.replay.test_timeline import TIMELINE
from refusal import check_refused_command, refused

from gallery_lib.comm.candidates import PLAIN
from gallery_lib.comm.topology import Topology
from gallery_lib.config import Comm, LabConfig, ReplayConfig

TWO_BY_TWO = Topology(((0, 1), (2, 3)))
TINY_TASK = Path(__file__).resolve().parent.parent / "helpers" / "tiny_task.py"


def test_turns_go_to_and_fro_and_figures_compare_with_ddps_own_way(
    benchmark_module: Callable[[str], Any],
) -> None:
    ddp_turns = benchmark_module("ddp_turns")
    ways = {PLAIN: Comm(), "other": Comm(streams=2)}
    assert ddp_turns.order(ways, 3) == [PLAIN, "other", "other", PLAIN, PLAIN, "other"]
    found = ddp_turns.figures(ways, {PLAIN: [[0.2, 0.2]] * 4, "other": [[0.1, 0.1]] * 4})
    assert (
        found["other"]["speedup"]["ratio"] == pytest.approx(2)
        and found["other"]["speedup"]["verdict"] == "faster"
    )
    assert "speedup" not in found[PLAIN]
    assert ddp_turns.text(found, 32, [4, 4], "GPU").splitlines()[1] == (
        "  8 GPUs -- 2M/8G:  p50:  0.200s 160/s  p75:  0.200s 160/s  p90:  0.200s 160/s  p95:  "
        "0.200s 160/s  (all devices, p50: 1280/s)"
    )


def test_ways_are_ddps_own_and_those_of_each_wire_format(
    benchmark_module: Callable[[str], Any],
) -> None:
    ways = benchmark_module("ddp_replay").ways
    found = ways(ReplayConfig(wires="exact,int8"), TWO_BY_TWO)
    assert next(iter(found)) == PLAIN and found[PLAIN] == Comm()
    assert {way.wire for name, way in found.items() if name.startswith("int8: ")} == {"int8"}
    assert list(ways(ReplayConfig(wires="bf16", only="bf16: views"), TWO_BY_TWO)) == [
        PLAIN,
        "bf16: views",
    ]
    with refused("only", "'vews'", "`views`"):
        ways(ReplayConfig(only="vews"), TWO_BY_TWO)
    with refused("wire", "'int4'"):
        ways(ReplayConfig(wires="int4"), TWO_BY_TWO)


def test_a_stretched_lab_has_slower_links_and_all_cores_for_each_host(
    benchmark_module: Callable[[str], Any],
) -> None:
    from gallery_lib.cluster import link_rate
    from gallery_lib.system import hardware

    lab = benchmark_module("ddp_on_lab").stretched(LabConfig(rate="1gbit"), 8.0)
    assert link_rate.bits_per_second(lab.rate) == 125_000_000
    assert lab.cpus == hardware.cores()


def test_a_replay_that_does_not_fit_into_memory_is_refused_before_anything_is_started(
    benchmark_module: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ddp_on_lab = benchmark_module("ddp_on_lab")
    gradient = dataclasses.replace(TIMELINE.gradients[0], shape=(10**9,))
    large = dataclasses.replace(TIMELINE, gradients=(gradient,))
    monkeypatch.setattr(ddp_on_lab.hardware, "memory_bytes", lambda: 32 * 2**30)
    assert (
        ddp_on_lab.too_large(TIMELINE, "exact", 4, 8)
        == ""
        == ddp_on_lab.too_large(large, "exact", 2, 2)
    )
    assert ddp_on_lab.too_large(large, "exact", 4, 2).startswith("small needs about 36.")
    assert ddp_on_lab.too_large(large, "int8", 2, 2) != ""


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (("run", "missing.json"), ["missing.json"]),
        (("record", "--model", "resnet51", "--out", "x.json"), ["model='resnet51'", "`resnet50`"]),
        (("record", "--times", "0.1", "--out", "x.json"), ["times", "--reason"]),
        (("diff", "one.json"), ["diff", "two files"]),
    ],
)
def test_bad_input_ends_with_2_and_one_message(
    benchmark_module: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple,
    values: list[str],
) -> None:
    ddp_lab = benchmark_module("ddp_lab")
    monkeypatch.setattr(sys, "argv", ["ddp_lab.py", *words])
    code = ddp_lab.exit_code_of(ddp_lab.main, error_prefix="error", interrupted="")
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    check_refused_command(code, said, *values)


@pytest.mark.slow
def test_real_training_in_turns_prints_the_seeds_format_and_writes_figures(
    checkout: Path, command: Callable[..., Any], tmp_path: Path
) -> None:
    """`command` for its environment, and for the difference of two files."""
    script = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node=2",
        str(checkout / "benchmarks/ddp_benchmark.py"),
    ]
    short = ["--model", f"{TINY_TASK}:TASK", "--rounds", "4", "--block_steps", "1"]
    figures = [tmp_path / "first.json", tmp_path / "second.json"]
    for file, options in zip(
        figures,
        (["--wire", "int8"], ["--streams", "2", "--bucket_views", "--early_steps", "--fused"]),
        strict=True,
    ):
        done = subprocess.run(
            [*script, *short, *options, "--out", str(file)],
            capture_output=True,
            text=True,
            timeout=150,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(
            r"  2 CPUs -- 1M/2C:  p50:  \d\.\d{3}s \d+/s  p75: .*\(all devices, p50: \d+/s\)",
            done.stdout,
        )
        found = json.loads(file.read_text())
        assert set(found["ways"]) == {PLAIN, "accelerated"}
        assert found["early_steps"] == ("--early_steps" in options) and found["fused"] == (
            "--fused" in options
        )
        assert found["ways"]["accelerated"]["speedup"]["low"] > 0
    assert "accelerated" in command("diff", *map(str, figures)).stdout
    done = subprocess.run([*script, *short], capture_output=True, text=True, timeout=150)
    assert done.returncode != 0 and "--tune" in done.stderr and "--hierarchical" in done.stderr


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.usefixtures("needs_a_lab")
def test_what_is_recorded_is_replayed_on_a_lab_and_says_what_it_is(
    command: Callable[..., Any], tmp_path: Path
) -> None:
    timeline, figures = tmp_path / "tiny.json", tmp_path / "figures.json"
    done = command(
        "record",
        "--model",
        f"{TINY_TASK}:TASK",
        "--workers",
        "0",
        "--threads",
        "1",
        "--out",
        str(timeline),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    short = ["--rounds", "4", "--block_steps", "1", "--rate", "100mbit"]
    done = command(
        "run",
        str(timeline),
        "--ranks",
        "2",
        "--only",
        "hierarchical",
        "--stretch",
        "2",
        *short,
        "--out",
        str(figures),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "time-dilated replay (stretch 2) on an emulated link of 100mbit" in done.stdout
    assert done.stdout.count("4 CPUs -- 2M/4C:  p50:  ") == 2
    assert "hostname" not in done.stdout + done.stderr
    found = json.loads(figures.read_text())
    assert set(found["ways"]) == {PLAIN, "hierarchical"} and found["what_it_is"].startswith(
        "Time-dilated replay on an emulated link"
    )
    assert found["ways"][PLAIN]["step_seconds"]["p50"] >= found["timeline"]["backward_seconds"]


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.usefixtures("needs_a_lab")
def test_a_replay_is_held_beside_real_training(command: Callable[..., Any], tmp_path: Path) -> None:
    """How close they are is for the benchmark to say: on a busy machine it cannot be a test."""
    figures = tmp_path / "figures.json"
    words = [
        "--model",
        f"{TINY_TASK}:TASK",
        "--rounds",
        "4",
        "--block_steps",
        "1",
        "--rate",
        "100mbit",
        "--wire",
        "bf16",
    ]
    done = command("validate", *words, "--out", str(figures))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(figures.read_text())
    assert set(found["ways"]) == {PLAIN, "accelerated"}
    for way in found["ways"].values():
        assert (
            way["real_p50_seconds"] > 0
            and way["replay_p50_seconds"] >= found["timeline"]["backward_seconds"]
        )
