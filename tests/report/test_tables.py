"""What the tables say, for verdicts of every kind."""

import dataclasses
import json
from pathlib import Path

import pytest

from gallery_lib.measure.comparison import Check, Comparison, Parity
from gallery_lib.report import plots, tables
from gallery_lib.results import Results
from gallery_lib.stats import Ratio
from gallery_lib.table import markdown_table, text_table

ENVIRONMENT = {"device": "cpu", "cpu": "A CPU", "cores": 2, "isa": ["avx2"], "memory_bytes": 2**34, "python": "3", "torch": "2"}


def results(p50: float) -> Results:
    return Results(
        task="resnet50",
        config={"amp_level": "O0", "batch_size": 16, "image_size": 48, "threads": 2},
        environment=ENVIRONMENT,
        world_size=1,
        nodes=1,
        steps=20,
        warmup_steps=2,
        loss={"first": 7.0, "last": None, "curve": [[1, 7.0], [2, None]]},
        metrics={"top1": 0.5},
        step_seconds={"p50": p50, "p75": p50, "p90": p50, "p95": p50, "mean": p50},
        samples_per_second={"per_device": 16 / p50, "global": 16 / p50, "whole_run": 3.0},
        startup_seconds={"total": 10.0, "compile": 0.0},
        page_faults=0.0,
        phase_seconds={"input": 0.01, "forward": 0.3, "backward": 0.5, "optimizer": 0.1},
        peak_memory_bytes={"host": 2**30, "device": None},
        skipped_steps=0,
        techniques={},
    )


def comparison(speedup: Ratio | None, steps: int | None) -> Comparison:
    check = Check("losses", speedup is not None, 0.5, 0.1, "step 2")
    return Comparison(
        task="resnet50",
        folder="runs/x",
        variants={"baseline": results(0.5), "compiler-opt": results(0.25)},
        speedup=speedup,
        parity=Parity(speedup is not None, [check]),
        break_even_steps=steps,
        verdict=speedup.verdict if speedup else "not comparable",
        chance={"top1": 0.1},
    )


def test_a_speedup_is_given_with_interval_verdict_and_break_even() -> None:
    text = tables.comparison_text(comparison(Ratio(2.0, 1.9, 2.1), 40))
    for part in ("2.00× in steady state (interval 1.90 to 2.10): faster", "after 40 steps", "32.0 samples/s", "64.0 samples/s", "no GPU"):
        assert part in text
    assert "held-out top1 (chance 0.10)" in text
    assert "not finite" in text


def test_without_parity_no_speedup_appears_anywhere() -> None:
    for text in (tables.comparison_text(comparison(None, None)), tables.comparison_markdown(comparison(None, None))):
        assert "not comparable" in text
        assert "losses: 0.5 where 0.1 is allowed (step 2)" in text
        assert "× in steady state" not in text
        assert "FAILED" in text


def test_break_even_has_words_for_every_case() -> None:
    fast = Ratio(2.0, 1.9, 2.1)
    assert "at once" in tables.break_even_line(comparison(fast, 0))
    assert "never" in tables.break_even_line(comparison(fast, None))
    assert "not comparable" in tables.break_even_line(comparison(None, None))


def test_tables_are_rectangular_in_both_forms() -> None:
    rows = tables.comparison_rows(comparison(Ratio(1.0, 0.9, 1.1), None))
    assert {len(row) for row in rows} == {3}
    assert len(markdown_table(rows).splitlines()) == len(rows) + 1
    assert len(text_table(rows).splitlines()) == len(rows) + 1


def test_a_loss_that_is_not_finite_is_drawn_and_described() -> None:
    outcome = comparison(Ratio(1.0, 0.9, 1.1), None)
    assert "not finite" in plots.losses_text(outcome)
    assert plots.losses(outcome).axes[0].get_lines()


def test_every_line_of_a_plot_differs_in_style_and_not_in_colour_alone() -> None:
    lines = plots.losses(dataclasses.replace(comparison(None, None))).axes[0].get_lines()
    assert len({line.get_linestyle() for line in lines}) == len(lines) == 2


def test_every_plot_has_a_table_of_what_it_shows(tmp_path: Path) -> None:
    outcome = dataclasses.replace(comparison(Ratio(2.0, 1.9, 2.1), 40), folder=str(tmp_path))
    for name, step in (("baseline", 0.5), ("compiler-opt", 0.25)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "steps.jsonl").write_text(json.dumps({"each_step_seconds": [9.0] * 2 + [step] * 18}) + "\n")
    assert plots.losses_rows(outcome) == [["step", "baseline", "compiler-opt"], ["1", "7.00", "7.00"], ["2", "not finite", "not finite"]]
    assert plots.step_times_rows(outcome)[3] == ["50 %", "500 ms", "250 ms"]
    assert plots.break_even_rows(outcome)[1:] == [["0", "10.00 s", "10.00 s"], ["40", "30.00 s", "20.00 s"], ["60", "40.00 s", "25.00 s"]]
    assert plots.throughput_rows(outcome)[1][2:] == ["32.0 samples/s", "3.0 samples/s"]


@pytest.mark.parametrize(("amp_level", "isa", "said"), [("O1", ["avx2"], True), ("O1", ["avx2", "avx512_bf16"], False), ("O0", [], False)])
def test_a_baseline_that_emulates_bfloat16_is_to_be_read_with_care(amp_level: str, isa: list[str], said: bool) -> None:
    found = comparison(Ratio(20.0, 19.0, 21.0), 3)
    variants = {
        name: dataclasses.replace(
            results, config={**results.config, "amp_level": amp_level}, environment={**results.environment, "isa": isa}
        )
        for name, results in found.variants.items()
    }
    found = dataclasses.replace(found, variants=variants)
    for text in (tables.comparison_text(found), tables.comparison_markdown(found)):
        assert ("eager fp32 (O0) would be faster" in text) == said
