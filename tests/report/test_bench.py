"""Tables, picture and verdict of a bench, for outcomes of every kind."""

import dataclasses
from pathlib import Path

import pytest
from made_comparison import ENVIRONMENT

from gallery_lib.cli.main import main
from gallery_lib.console.text import Rows
from gallery_lib.measure.bench_result import Bench, Outcome, Row, read_bench, write_bench
from gallery_lib.measure.comparison.result import OTHER_CLOCKS, Check, Parity
from gallery_lib.report.bench import (
    MEANINGS,
    chart,
    complete,
    markdown,
    summary_rows,
    task_rows,
    text,
)
from gallery_lib.system.gpu import GpuState

PASSED = Parity(True, [])
FAILED = Parity(
    False, [Check(n, n == "losses", 1.0, 0.1, "w") for n in ("gradient scale", "losses")]
)


def row(seconds: float, parity: Parity | None = PASSED) -> Row:
    return Row(
        reason=None,
        step_seconds={"p50": seconds},
        samples_per_second={"global": 8 / seconds, "whole_run": 4 / seconds},
        startup_seconds={"total": 9.0, "compile": 3.0},
        peak_memory_bytes={"host": 2**30, "device": None},
        techniques={},
        parity=parity,
    )


def outcome(rows: dict[str, Row], *ratios: tuple[str, str, float]) -> Outcome:
    with_interval = [(one, other, r, r - 0.1, r + 0.1) for one, other, r in ratios]
    return Outcome("d", "2026-01-01", 60.0, None, {"batch_size": 8}, rows, with_interval)


def by_name(rows: Rows) -> dict[str, list[str]]:
    return {cells[0]: cells for cells in rows}


def bench(kind: str = "bench", **tasks: Outcome) -> Bench:
    """Return a bench as it looked before peers had best forms: one good task, and a wrong one."""
    absent, broken = Row("not installed: accelerate (pip install x)"), Row("rank 0 failed with X")
    eager = row(1.0, None)
    good = outcome(
        {"eager-O1": eager, "fabric": row(0.8), "accelerate": absent, "ours": row(0.5)},
        *(("eager-O1", "fabric", 1.25), ("eager-O1", "ours", 2.0), ("fabric", "ours", 1.6)),
    )
    wrong = outcome({"eager-O1": eager, "fabric": broken, "ours": row(0.5, FAILED)})
    versions = {"torch": "2", "accelerate": "not installed"}
    found = tasks or {"a": good, "b": wrong}
    return Bench(kind, "gallery bench", {"fused": False}, ENVIRONMENT, versions, found)


def test_rows_say_why_there_is_no_parity_and_where_a_loader_hides() -> None:
    later = Parity(False, [Check("all losses", False, 1.0, 0.1, "step 12")])
    small = dataclasses.replace(FAILED, batch_to_take=16)
    bursts = {"step_seconds": 2.0, "input_seconds": 1.6, "steady_input_seconds": 0.0}
    rates = {"global": 16.0, "sustained": 4.0, "whole_run": 0.04}
    slow = dataclasses.replace(row(0.5), sustained=bursts, samples_per_second=rates)
    rows = {"eager-O1": row(1.0, None), "a": row(1.0, later), "b": row(1.0, small), "ours": slow}
    _, _, a, b, ours = task_rows(outcome(rows), "bench")
    assert a[-1] == "FAILED: same until step 12, then not"
    assert b[-1] == "too small to judge: take a batch size of 16 or more"
    assert ours[2:4] == ["16.0 (sustained 4.00)", "0.0400"]


def test_a_gpu_has_both_rates_and_clocks_that_forbid_a_ratio_are_named() -> None:
    def on_gpu(megahertz: float) -> Row:
        return dataclasses.replace(
            row(0.5),
            samples_per_second={"global": 16.0, "sustained": 15.9, "whole_run": 0.04},
            peak_memory_bytes={"host": 2**30, "device": 2**31, "device_reserved": 2**32},
            gpu=GpuState(megahertz, 2619, 600, []),
        )

    rows = {"eager-O1": on_gpu(1980), "fabric-best": on_gpu(1755), "ours": on_gpu(1980)}
    found = outcome(rows, ("eager-O1", "ours", 2.0))
    _, eager, fabric, ours = task_rows(found, "bench")
    assert (eager[2], eager[5]) == ("16.0 (sustained 15.9)", "2.00 GiB")
    assert fabric[6:8] == [OTHER_CLOCKS, OTHER_CLOCKS] and ours[6:8] == ["2.00× (1.90 to 2.10)", ""]
    assert by_name(summary_rows(bench(a=found)))["a"][2] == OTHER_CLOCKS
    alike = outcome({**rows, "fabric-best": on_gpu(1975)}, ("eager-O1", "ours", 2.0))
    assert task_rows(alike, "bench")[2][6:8] == ["", ""]  # for another reason


def with_best_forms() -> Bench:
    """Return a bench of two tasks with different best peers, and of one that has no best peer."""

    def of(**seconds: float) -> Outcome:
        all_seconds = {"eager-O1": 1.0, "fabric": 0.8, **seconds, "ours": 0.5}
        rows = {n: row(s, None if n == "eager-O1" else PASSED) for n, s in all_seconds.items()}
        others = [name for name in rows if name != "ours"]
        pairs = [("eager-O1", name) for name in rows if name != "eager-O1"]
        pairs += [(name, "ours") for name in others[1:]]
        return outcome(rows, *((a, b, all_seconds[a] / all_seconds[b]) for a, b in pairs))

    first = of(**{"torch.compile-best": 0.6, "fabric-best": 0.75})
    second = of(**{"torch.compile-best": 0.6, "fabric-best": 0.55})
    best = {"torch.compile-best": Row("rank 0 failed"), "fabric-best": row(0.5, FAILED)}
    third = outcome(
        {"eager-O1": row(1.0, None), **best, "ours": row(0.5)}, ("eager-O1", "ours", 2.0)
    )
    return bench(a=first, b=second, c=third)


def waterfall(*ratios: tuple[str, str, float], width: float = 0.05) -> Bench:
    """Return a waterfall whose ratios have intervals of this width to either side, above 0."""
    rows = {"eager-O1": row(1.0, None), "layout": row(0.8)}
    rows |= {"compiler": row(0.5), "allocator": Row("does not apply: why")}
    with_interval = [(a, b, r, max(r - width, 0.01), r + width) for a, b, r in ratios]
    found = dataclasses.replace(outcome(rows), ratios=with_interval)
    return bench("waterfall", resnet50=found)


def test_a_bench_is_read_back_as_it_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_bench(tmp_path / "bench.json", bench())
    assert read_bench(tmp_path / "bench.json") == bench()
    assert main(["show", str(tmp_path)]) == 0
    assert capsys.readouterr().out == text(bench()) + "\n"


def test_a_variant_shows_its_speed_or_why_it_has_none() -> None:
    good, wrong = (by_name(task_rows(task, "bench")) for task in bench().tasks.values())
    assert good["ours"][1] == "500 ms" and "2.00× (1.90 to 2.10)" in good["ours"]
    assert "1.60× (1.50 to 1.70)" in good["fabric"]
    assert good["accelerate"][-1] == "not installed: accelerate (pip install x)"
    assert wrong["fabric"][-1] == "did not run: rank 0 failed with X"
    assert wrong["ours"][-1] == "FAILED: gradient scale"


def test_the_summary_says_of_how_many_tasks_the_mean_is() -> None:
    rows = by_name(summary_rows(bench()))
    others = ("eager-O1", "fabric", "accelerate")
    assert rows["task"][1:4] == [f"ours over {name}" for name in others]
    assert rows["b"][1:4] == ["no parity (ours)"] * 3
    assert rows["geometric mean"][1:4] == [
        "2.00× (1.90 to 2.10), 1 of 2 tasks",
        "1.60× (1.50 to 1.70), 1 of 2 tasks",
        "none, 0 of 2 tasks",
    ]


def test_the_summary_holds_ours_against_the_best_peer_of_each_task_and_names_it() -> None:
    rows = by_name(summary_rows(with_best_forms()))
    *last, mean = [cells[-1] for cells in rows.values()]
    assert last == [
        "ours over the best of the others at its best",
        "1.20× (1.10 to 1.30), torch.compile-best",
        "1.10× (1.00 to 1.20), fabric-best",
        "none",
    ]
    assert mean.startswith("1.15× (") and mean.endswith(", 2 of 3 tasks")
    assert rows["c"][3:5] == ["did not run (torch.compile-best)", "no parity (fabric-best)"]
    assert {len(cells) for cells in rows.values()} == {len(rows["task"])}


def test_a_waterfall_shows_what_each_technique_adds_and_all_together() -> None:
    one, both, second = ("eager-O1", "layout"), ("eager-O1", "compiler"), ("layout", "compiler")
    whole = waterfall((*one, 1.1), (*both, 1.65), (*second, 1.5))
    shown = chart(whole)
    title = "All together 1.65× as fast as eager in bf16"
    assert shown.title == " ".join(shown.draw().get_suptitle().split()) == title
    assert [cells[:4] for cells in shown.rows[2:4]] == [
        ["+ layout", "800 ms", "1.10× (1.05 to 1.15)", ""],
        ["+ compiler", "500 ms", "1.65× (1.60 to 1.70)", "1.50× (1.45 to 1.55)"],
    ]
    assert shown.rows[2][-1] == MEANINGS["layout"]
    assert "+ allocator: does not apply: why" in shown.alternative_text
    unclear = waterfall((*one, 1.02), width=17.0)
    assert chart(unclear).title.startswith("All together: not measurable (1.02× (0.01 to 18.02)")
    assert chart(waterfall()).title == "No technique could be compared with the baseline"


def test_one_long_whisker_is_cut_and_squeezes_no_bar() -> None:
    axes = chart(waterfall(("eager-O1", "layout", 1.2), width=16.0)).draw().axes[0]
    assert axes.get_xlim()[1] < 2.5
    assert "1.20× (to 17.2)" in [text.get_text() for text in axes.texts]


def test_only_a_bench_in_which_ours_ran_with_parity_is_complete() -> None:
    good = bench().tasks["a"]
    assert complete(bench(a=good)) and not complete(bench())
    assert not complete(bench(a=dataclasses.replace(good, reason="no memory")))


def test_the_picture_has_a_bar_for_ours_a_tick_for_the_best_peer_and_a_line_at_1() -> None:
    axes = chart(with_best_forms()).draw().axes[0]
    assert [bar.get_width() for bar in axes.patches] == [2.0, 2.0, 2.0]
    (ticks,) = [line for line in axes.lines if line.get_label().startswith("best of")]
    assert list(ticks.get_xdata()) == pytest.approx([1 / 0.6, 1 / 0.55])
    assert list(ticks.get_ydata()) == [0, 1]
    assert any(list(line.get_xdata()) == [1.0, 1.0] for line in axes.lines)
    header, first, *_ = chart(with_best_forms()).rows
    assert header[1:] == ["ours over eager-O1", "ours over the best of the others at its best"]
    assert first[1:] == ["2.00× (1.90 to 2.10)", "1.20× (1.10 to 1.30), torch.compile-best"]


def test_committed_benches_of_before_are_still_shown(checkout: Path) -> None:
    shown = [
        markdown(read_bench(file), "x.png")
        for file in (checkout / "benchmarks" / "results").rglob("bench*.json")
    ]
    assert shown and all("geometric mean" in s and "![Ours is faster in" in s for s in shown)
