"""benchmarks/ddp_*.py: turns, figures and their text, replays, and a recording on a lab.

The replays run on processes. On a lab the test goes from the recording to a table.
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
from cluster.conftest import why_no_lab
from measure.replay.test_timeline import TIMELINE

from gallery_lib.comm.topology import Topology
from gallery_lib.comm.tuner import PLAIN
from gallery_lib.config import Comm, LabConfig, ReplayConfig
from gallery_lib.errors import InputError, RunFailed
from gallery_lib.measure.replay.sweep import SETTINGS, TABLE, find_sweep
from gallery_lib.measure.replay.timeline import write_timeline
from gallery_lib.system.processes import search_path

TWO_BY_TWO = Topology(((0, 1), (2, 3)))
TINY_TASK = Path(__file__).resolve().parent.parent / "helpers" / "tiny_task.py"


@pytest.fixture
def command(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run benchmarks/ddp_lab.py to its end."""
    monkeypatch.setenv("PYTHONPATH", search_path())
    monkeypatch.setenv("GALLERY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(*words: str, seconds: float = 150) -> subprocess.CompletedProcess[str]:
        script = str(checkout / "benchmarks" / "ddp_lab.py")
        return subprocess.run(
            [sys.executable, script, *words], capture_output=True, text=True, timeout=seconds
        )

    return run


@pytest.fixture
def needs_a_lab() -> None:
    if reason := why_no_lab():
        pytest.skip(reason)


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
    with pytest.raises(InputError, match="Did you mean `views`"):
        ways(ReplayConfig(only="vews"), TWO_BY_TWO)
    with pytest.raises(InputError, match="wire='int4' must be"):
        ways(ReplayConfig(wires="int4"), TWO_BY_TWO)


def test_a_stretched_lab_has_slower_links_and_all_cores_for_each_host(
    benchmark_module: Callable[[str], Any],
) -> None:
    from gallery_lib.cluster import link_rate
    from gallery_lib.system import hardware

    lab = benchmark_module("ddp_lab").stretched(LabConfig(rate="1gbit"), 8.0)
    assert link_rate.bits_per_second(lab.rate) == 125_000_000
    assert lab.cpus == hardware.cores()


def test_a_replay_that_does_not_fit_into_memory_is_refused_before_anything_is_started(
    benchmark_module: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ddp_lab = benchmark_module("ddp_lab")
    gradient = dataclasses.replace(TIMELINE.gradients[0], shape=(10**9,))
    large = dataclasses.replace(TIMELINE, gradients=(gradient,))
    monkeypatch.setattr(ddp_lab.hardware, "memory_bytes", lambda: 32 * 2**30)
    assert (
        ddp_lab.too_large(TIMELINE, "exact", 4, 8) == "" == ddp_lab.too_large(large, "exact", 2, 2)
    )
    assert ddp_lab.too_large(large, "exact", 4, 2).startswith("small needs about 36.")
    assert ddp_lab.too_large(large, "int8", 2, 2) != ""


def test_a_sweep_over_links_of_no_rate_is_refused_before_anything_is_written(
    benchmark_module: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    timeline, out = tmp_path / "small.json", tmp_path / "sweep"
    write_timeline(timeline, TIMELINE)
    monkeypatch.setattr(
        sys, "argv", ["ddp_lab.py", "sweep", str(timeline), "--rate", "10parsec", "--out", str(out)]
    )
    with pytest.raises(InputError, match="rate='10parsec' must be a number"):
        benchmark_module("ddp_lab").main()
    assert not out.exists()


def test_a_sweep_keeps_what_was_measured_and_says_what_was_not_and_why(
    benchmark_module: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing is left to measure here, so no lab is made.

    A part was measured before, and the rest is too large.
    """
    ddp_lab, timeline, out = (
        benchmark_module("ddp_lab"),
        tmp_path / "small.json",
        tmp_path / "sweep",
    )
    write_timeline(timeline, TIMELINE)
    for hosts, ddp, other in ((1, 0.010, None), (2, 0.020, 0.016)):
        ways = {"ddp": {"step_seconds": {"p50": ddp}}}
        if other:
            ways["views"] = {
                "step_seconds": {"p50": other},
                "speedup": {"ratio": 1.25, "low": 1.2, "high": 1.3},
            }
        (out / f"{hosts}-hosts").mkdir(parents=True)
        (out / f"{hosts}-hosts" / "small.json").write_text(
            json.dumps({"ways": ways, "replay": {"stretch": 2.0}, "replayed_on": "A"})
        )
    monkeypatch.setattr(ddp_lab.hardware, "memory_bytes", lambda: 10**9)
    words = [
        "ddp_lab.py",
        "sweep",
        str(timeline),
        "--stretch",
        "2",
        "--hosts_of_sweep",
        "4,2",
        "--out",
        str(out),
    ]
    monkeypatch.setattr(sys, "argv", words)
    assert ddp_lab.main() == 0
    sweep = find_sweep(out)
    assert sweep is not None
    assert [
        (cell.model, cell.hosts, cell.chosen, cell.acc_ratio, cell.ddp_acc) for cell in sweep.cells
    ] == [
        ("small", 1, PLAIN, 1.0, 1.0),
        ("small", 2, "views", 1.25, 0.5),
    ]
    assert (
        sweep.reasons["small", 4].startswith("small needs about 3.")
        and sweep.what_it_is == ddp_lab.WHAT_IT_IS
    )
    settings = out / "settings.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "date": "2026-01-01"}))
    assert ddp_lab.main() == 0
    again = find_sweep(out)
    assert again is not None and again.date == "2026-01-01"  # nothing was measured since

    monkeypatch.setattr(sys, "argv", [*words[:-1], str(copied := tmp_path / "copied")])
    copied.mkdir()
    for file in (TABLE, SETTINGS):
        (copied / file).write_bytes((out / file).read_bytes())
    assert ddp_lab.main() == 0
    assert find_sweep(copied).cells == sweep.cells  # a table alone is gone on with, too
    (copied / TABLE).write_text((out / TABLE).read_text().replace("small,", "other,"))
    with pytest.raises(InputError, match="has a line of other that is of none of the timelines"):
        ddp_lab.main()


def test_what_a_sweep_measured_before_it_failed_has_its_line(
    benchmark_module: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ddp_lab, out = benchmark_module("ddp_lab"), tmp_path / "sweep"
    timelines = [tmp_path / "small.json", tmp_path / "other.json"]
    for timeline in timelines:
        write_timeline(timeline, dataclasses.replace(TIMELINE, task=timeline.stem))

    def replayed(files: list[Path], *others: Any) -> None:
        figures = {
            "ways": {"ddp": {"step_seconds": {"p50": 0.01}}},
            "replay": {"stretch": 1.0},
            "replayed_on": "A",
        }
        (others[-1] / files[0].name).write_text(json.dumps(figures))
        raise RunFailed("the other one ended")

    monkeypatch.setattr(ddp_lab, "replayed", replayed)
    monkeypatch.setattr(
        sys,
        "argv",
        ["ddp_lab.py", "sweep", *map(str, timelines), "--hosts_of_sweep", "1", "--out", str(out)],
    )
    with pytest.raises(RunFailed):
        ddp_lab.main()
    sweep = find_sweep(out)
    assert sweep is not None and [(cell.model, cell.hosts) for cell in sweep.cells] == [
        ("small", 1)
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "missing.json"), "missing.json cannot be read"),
        (
            ("record", "--model", "resnet51", "--out", "x.json"),
            "model='resnet51' is not a task. Did you mean",
        ),
        (("record", "--times", "0.1", "--out", "x.json"), "say which with --reason"),
        (("diff", "one.json"), "diff takes two files"),
    ],
)
def test_bad_input_ends_with_2_and_one_message(
    benchmark_module: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple,
    message: str,
) -> None:
    ddp_lab = benchmark_module("ddp_lab")
    monkeypatch.setattr(sys, "argv", ["ddp_lab.py", *words])
    assert ddp_lab.exit_code_of(ddp_lab.main, error_prefix="error", interrupted="") == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and message in said


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
    assert done.returncode != 0 and "say what to compare with DDP's own way" in done.stderr


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
def test_a_sweep_makes_a_table_and_goes_on_where_it_was_ended(
    command: Callable[..., Any], tmp_path: Path
) -> None:
    timelines = [tmp_path / "other.json", tmp_path / "small.json"]
    for file in timelines:
        write_timeline(file, dataclasses.replace(TIMELINE, task=file.stem))
    out = tmp_path / "sweep"
    words = [
        "sweep",
        *map(str, timelines),
        "--only",
        "views",
        "--rounds",
        "4",
        "--block_steps",
        "1",
        "--out",
        str(out),
    ]
    done = command(*words, "--hosts_of_sweep", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    measured_first = (out / "1-hosts" / "small.json").stat().st_mtime_ns
    done = command(*words, "--hosts_of_sweep", "1,2", "--stretch", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (out / "1-hosts" / "small.json").stat().st_mtime_ns == measured_first
    sweep = find_sweep(out)
    assert sweep is not None
    assert [(cell.model, cell.hosts) for cell in sweep.cells] == [
        ("other", 1),
        ("other", 2),
        ("small", 1),
        ("small", 2),
    ]
    first, second = sweep.cells[2:]
    assert (first.chosen, first.acc_ratio, first.ddp_acc) == (PLAIN, 1.0, 1.0)
    assert (first.stretch, second.stretch) == (1.0, 2.0)
    assert (
        second.acc_ratio_low <= second.acc_ratio <= second.acc_ratio_high
        and second.ddp_acc is not None
    )
    refused = command(*words, "--rate", "10mbit")
    assert (
        refused.returncode == 2
        and "holds a sweep with other timelines or options" in refused.stderr
    )
    (out / "2-hosts" / "small.json").unlink()
    table = (out / TABLE).read_text().splitlines(keepends=True)
    (out / TABLE).write_text("".join(table[:-1]))  # and its line: now it has not been measured
    refused = command(*words, "--hosts_of_sweep", "2,4", "--stretch", "4")
    assert (
        refused.returncode == 2
        and "holds figures of 2 hosts with stretch=2. Go on with that." in refused.stderr
    )
    assert not (out / "4-hosts").exists()


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
