"""benchmarks/ddp_lab.py sweep: what is refused, what is kept, and the table that comes of it."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from measure.replay.test_timeline import TIMELINE
from refusal import check_refused_command, refused

from gallery_lib.comm.candidates import PLAIN
from gallery_lib.errors import RunFailed
from gallery_lib.measure.replay.sweep_table import SETTINGS, TABLE, find_sweep
from gallery_lib.measure.replay.timeline import write_timeline


def test_a_sweep_over_links_of_no_rate_is_refused_before_anything_is_written(
    benchmark_module: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    timeline, out = tmp_path / "small.json", tmp_path / "sweep"
    write_timeline(timeline, TIMELINE)
    monkeypatch.setattr(
        sys, "argv", ["ddp_lab.py", "sweep", str(timeline), "--rate", "10parsec", "--out", str(out)]
    )
    with refused("rate", "'10parsec'", "100mbit"):
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
    monkeypatch.setattr(benchmark_module("ddp_on_lab").hardware, "memory_bytes", lambda: 10**9)
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
    with refused("out", "other"):
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

    monkeypatch.setattr(benchmark_module("ddp_sweep"), "replayed", replayed)
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
    other = command(*words, "--rate", "10mbit")
    check_refused_command(other.returncode, other.stderr, out, "other timelines or options")
    (out / "2-hosts" / "small.json").unlink()
    table = (out / TABLE).read_text().splitlines(keepends=True)
    (out / TABLE).write_text("".join(table[:-1]))  # and its line: now it has not been measured
    other = command(*words, "--hosts_of_sweep", "2,4", "--stretch", "4")
    check_refused_command(other.returncode, other.stderr, out, "2 hosts", "stretch=2")
    assert not (out / "4-hosts").exists()
