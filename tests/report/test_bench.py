"""Tables, picture and verdict of a bench, for outcomes of every kind."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from made_roofline import made_roofline

from gallery_lib.cli.main import main
from gallery_lib.measure.bench.result import Bench, Outcome, Row, read_bench, write_bench
from gallery_lib.report.bench_chart import chart
from gallery_lib.report.bench_tables import summary_rows, task_rows
from gallery_lib.report.bench_text import complete, markdown, text

PASSED = {"passed": True, "checks": []}
FAILED = {
    "passed": False,
    "checks": [
        {"name": name, "passed": passed, "worst": 1.0, "limit": 0.1, "where": "w"}
        for name, passed in (("gradient scale", False), ("losses", True))
    ],
}
ENVIRONMENT = {
    "device": "cpu",
    "cpu": "A CPU",
    "cores": 2,
    "isa": ["avx2"],
    "memory_bytes": 2**34,
    "python": "3",
    "torch": "2",
}


def row(seconds: float, parity: dict | None = PASSED) -> Row:
    return Row(
        reason=None,
        step_seconds={"p50": seconds},
        samples_per_second={"global": 8 / seconds, "whole_run": 4 / seconds},
        startup_seconds={"total": 9.0, "compile": 3.0},
        peak_memory_bytes={"host": 2**30, "device": None},
        flops_per_second=3e10 / seconds,
        bytes_per_second=4e9 / seconds,
        techniques={},
        parity=parity,
    )


def outcome(rows: dict[str, Row], ratios: list, reason: str | None = None) -> Outcome:
    return Outcome(
        "d",
        "2026-01-01",
        60.0,
        reason,
        {"batch_size": 8},
        {"float32": 1e11, "bfloat16": 2e10, "copy": 1e10},
        rows,
        ratios,
    )


def bench(kind: str = "bench") -> Bench:
    good = outcome(
        {
            "eager-O1": row(1.0, None),
            "fabric": row(0.8),
            "accelerate": Row("not installed: accelerate (pip install x)"),
            "ours": row(0.5),
        },
        [
            ("eager-O1", "fabric", 1.25, 1.2, 1.3),
            ("eager-O1", "ours", 2.0, 1.9, 2.1),
            ("fabric", "ours", 1.6, 1.5, 1.7),
        ],
    )
    wrong = outcome(
        {
            "eager-O1": row(1.0, None),
            "fabric": Row("rank 0 failed with ValueError: x"),
            "ours": row(0.5, FAILED),
        },
        [],
    )
    # Benches looked like this before peers had best forms.
    return Bench(
        kind,
        "gallery bench",
        {"fused": False},
        ENVIRONMENT,
        {"torch": "2", "accelerate": "not installed"},
        {"a": good, "b": wrong},
    )


def test_rows_say_why_there_is_no_parity_and_where_a_loader_hides() -> None:
    checks = [{"name": "all losses", "passed": False, "where": "step 12"}]
    later = {"passed": False, "checks": checks, "verdict": "same at first, then not"}
    small = {**FAILED, "batch_to_take": 16}
    bursts = {"step_seconds": 2.0, "input_seconds": 1.6, "steady_input_seconds": 0.0}
    rates = {"global": 16.0, "sustained": 4.0, "whole_run": 0.04}
    slow = dataclasses.replace(row(0.5), sustained=bursts, samples_per_second=rates)
    found = outcome(
        {"eager-O1": row(1.0, None), "a": row(1.0, later), "b": row(1.0, small), "ours": slow}, []
    )
    _, _, a, b, ours = task_rows(found, "bench")
    assert a[-1] == "FAILED: same until step 12, then not"
    assert b[-1] == "too small to judge: take a batch size of 16 or more"
    assert ours[2:4] == ["16.0 (sustained 4.00)", "0.0400"]
    shown = text(dataclasses.replace(bench(), tasks={"x": found}))
    assert "a sustained one waits for data: ours 1.60 s" in shown


def with_best_forms() -> Bench:
    """Return a bench of two tasks with different best peers, and a third task.

    In the third the best forms have no ratio.
    """

    def of(seconds: dict[str, float]) -> Outcome:
        rows = {
            name: row(value, None if name == "eager-O1" else PASSED)
            for name, value in seconds.items()
        }
        rows["torch.compile-best"] = dataclasses.replace(
            rows["torch.compile-best"], techniques={"optimizer": "AdamW, torch's fused form"}
        )
        pairs = [("eager-O1", name) for name in seconds if name != "eager-O1"]
        pairs += [(name, "ours") for name in seconds if name not in ("eager-O1", "ours")]
        return outcome(
            rows,
            [
                (
                    a,
                    b,
                    seconds[a] / seconds[b],
                    seconds[a] / seconds[b] - 0.1,
                    seconds[a] / seconds[b] + 0.1,
                )
                for a, b in pairs
            ],
        )

    common = {"eager-O1": 1.0, "torch.compile": 0.9, "fabric": 0.8}
    first = of({**common, "torch.compile-best": 0.6, "fabric-best": 0.75, "ours": 0.5})
    second = of({**common, "torch.compile-best": 0.6, "fabric-best": 0.55, "ours": 0.5})
    failed = Row("rank 0 failed with ValueError: x")
    third = outcome(
        {
            "eager-O1": row(1.0, None),
            "torch.compile-best": failed,
            "fabric-best": row(0.5, FAILED),
            "ours": row(0.5),
        },
        [],
    )
    third = dataclasses.replace(third, ratios=[("eager-O1", "ours", 2.0, 1.9, 2.1)])
    return dataclasses.replace(
        bench(), options={"peer_modes": None}, tasks={"a": first, "b": second, "c": third}
    )


def waterfall() -> Bench:
    rows = {
        "eager-O1": row(1.0, None),
        "layout": row(0.8),
        "allocator": Row("does not apply: why"),
        "compiler": row(0.5),
    }
    ratios = [
        ("eager-O1", "layout", 1.25, 1.2, 1.3),
        ("eager-O1", "compiler", 2.0, 1.9, 2.1),
        ("layout", "compiler", 1.6, 1.5, 1.7),
    ]
    return dataclasses.replace(bench("waterfall"), tasks={"a": outcome(rows, ratios)})


def test_a_bench_is_read_back_as_it_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_bench(tmp_path / "bench.json", bench())
    assert read_bench(tmp_path / "bench.json") == bench()
    assert main(["show", str(tmp_path)]) == 0
    assert capsys.readouterr().out == text(bench()) + "\n"


def test_the_roofline_of_ours_is_kept_and_shown(tmp_path: Path) -> None:
    whole = bench()
    measured = dataclasses.replace(whole.tasks["a"], roofline=made_roofline())
    whole = dataclasses.replace(whole, tasks={**whole.tasks, "a": measured})
    write_bench(tmp_path / "bench.json", whole)
    assert read_bench(tmp_path / "bench.json") == whole
    shown = text(whole)
    assert "ours reaches 45% of this machine's limits: 802 ms under the profiler, 358 ms" in shown
    assert "convolutions, backward" in shown and "convolutions, backward" not in text(bench())


def test_a_variant_shows_its_speed_or_why_it_has_none() -> None:
    by_name = {cells[0]: cells for cells in task_rows(bench().tasks["a"], "bench")}
    assert by_name["ours"][1] == "500 ms"
    assert "2.00× (1.90 to 2.10)" in by_name["ours"]
    assert "60 (60%)" in by_name["ours"]  # of the fastest product, 100 GFLOP/s
    assert "1.60× (1.50 to 1.70)" in by_name["fabric"]
    assert by_name["accelerate"][-1] == "not installed: accelerate (pip install x)"
    by_name = {cells[0]: cells for cells in task_rows(bench().tasks["b"], "bench")}
    assert by_name["fabric"][-1] == "did not run: rank 0 failed with ValueError: x"
    assert by_name["ours"][-1] == "FAILED: gradient scale"


def test_the_summary_says_of_how_many_tasks_the_mean_is() -> None:
    rows = {cells[0]: cells for cells in summary_rows(bench())}
    assert rows["task"][:4] == [
        "task",
        "ours over eager-O1",
        "ours over fabric",
        "ours over accelerate",
    ]
    assert rows["b"][1:] == ["no parity (ours)"] * 4
    means = [
        "2.00× (1.90 to 2.10), 1 of 2 tasks",
        "1.60× (1.50 to 1.70), 1 of 2 tasks",
        "none, 0 of 2 tasks",
    ]
    assert rows["geometric mean"][1:4] == means


def test_the_summary_holds_ours_against_the_best_peer_of_each_task_and_names_it() -> None:
    rows = {cells[0]: cells for cells in summary_rows(with_best_forms())}
    assert rows["task"][-1] == "ours over the best of the others at its best"
    assert rows["a"][-1] == "1.20× (1.10 to 1.30), torch.compile-best"
    assert rows["b"][-1] == "1.10× (1.00 to 1.20), fabric-best"
    assert rows["c"][-1] == "did not run (torch.compile-best); no parity (fabric-best)"
    assert rows["geometric mean"][-1].startswith("1.15× (") and rows["geometric mean"][-1].endswith(
        ", 2 of 3 tasks"
    )
    assert {len(cells) for cells in rows.values()} == {len(rows["task"])}


def test_where_no_peer_is_at_its_best_the_best_is_one_as_it_comes_and_is_called_so() -> None:
    rows = {cells[0]: cells for cells in summary_rows(bench())}
    assert rows["task"][-1] == "ours over the best of the peers as it comes"
    assert rows["a"][-1] == "1.60× (1.50 to 1.70), fabric"


def test_what_the_two_forms_are_stands_below_the_tables_and_what_was_done_below_each_task() -> None:
    said = text(with_best_forms())
    assert "As it comes: " in said and "At its best: with `-best`" in said
    assert "At its best: optimizer: AdamW, torch's fused form." in said
    assert "With `-best`" not in text(bench()) and "`-best`" not in text(bench())


def test_a_waterfall_shows_what_each_technique_adds() -> None:
    rows = {cells[0]: cells for cells in task_rows(waterfall().tasks["a"], "waterfall")}
    assert rows["+ compiler"][6:8] == ["2.00× (1.90 to 2.10)", "1.60× (1.50 to 1.70)"]
    assert rows["+ layout"][6:8] == ["1.25× (1.20 to 1.30)", ""]
    assert rows["+ allocator"][-1] == "does not apply: why"
    assert complete(waterfall())


def test_only_a_bench_in_which_ours_ran_with_parity_is_complete() -> None:
    assert not complete(bench())
    good = bench().tasks["a"]
    assert complete(dataclasses.replace(bench(), tasks={"a": good}))
    assert not complete(
        dataclasses.replace(bench(), tasks={"a": dataclasses.replace(good, reason="no memory")})
    )


def test_the_picture_and_its_text_leave_out_what_was_not_measured() -> None:
    for found in (bench(), waterfall(), with_best_forms()):
        chart(found).draw().savefig("/dev/null", format="png")
    words = chart(bench()).alternative_text
    assert words.startswith("Ours is faster in 1 of 2 tasks (1 not measured).")
    assert "b: no parity (ours), no parity (ours);" in words


def test_the_picture_has_a_bar_for_ours_a_tick_for_the_best_peer_and_a_line_at_1() -> None:
    axes = chart(with_best_forms()).draw().axes[0]
    assert [bar.get_width() for bar in axes.patches] == [2.0, 2.0, 2.0]
    ticks = next(
        line
        for line in axes.lines
        if line.get_marker() == "|" and line.get_label().startswith("best of")
    )
    assert list(ticks.get_xdata()) == pytest.approx([1 / 0.6, 1 / 0.55]) and list(
        ticks.get_ydata()
    ) == [0, 1]
    assert any(list(line.get_xdata()) == [1.0, 1.0] for line in axes.lines)
    header, first, *_ = chart(with_best_forms()).rows
    assert header[1:] == ["ours over eager-O1", "ours over the best of the others at its best"]
    assert first[1:] == ["2.00× (1.90 to 2.10)", "1.20× (1.10 to 1.30), torch.compile-best"]


def test_committed_benches_of_before_are_still_shown(checkout: Path) -> None:
    files = sorted((checkout / "benchmarks" / "results").rglob("bench*.json"))
    assert files
    for file in files:
        found = read_bench(file)
        shown = markdown(found, "x.png")
        assert "geometric mean" in shown and "![Ours is faster in" in shown


def test_texts_name_machine_versions_limits_and_optimizer() -> None:
    said = text(bench())
    assert (
        "2 cores of A CPU" in said and "torch 2" in said and "accelerate not installed" not in said
    )
    assert "100 GFLOP/s in float32, 20 GFLOP/s in bfloat16; copying 10.0 GB/s" in said
    assert "Optimizer: torch's as it comes" in said
    assert "Not measured: no memory" in markdown(
        dataclasses.replace(
            bench(), tasks={"a": dataclasses.replace(bench().tasks["a"], reason="no memory")}
        ),
        "bench.png",
    )
