"""Contents of the tables, for verdicts of every kind."""

import dataclasses
import json
from pathlib import Path

import pytest
from made_comparison import FASTER, changed, comparison

from gallery_lib.console.table import (
    markdown_table,
    number,
    rate,
    seconds,
    short_rate,
    text_table,
)
from gallery_lib.report import plots, tables, verdict
from gallery_lib.report.folded import unfolded
from gallery_lib.stats import Ratio


@pytest.mark.parametrize(
    ("value", "said"),
    [
        *(
            (0.0, "0"),
            (0.25, "0.250"),
            (1.0, "1.00"),
            (9.999, "10.0"),
            (38.07, "38.1"),
            (24576.0, "24,600"),
            (-0.5, "-0.500"),
        ),
        *(
            (0.00123, "0.00123"),
            (0.000123, "0.00012"),
            (999.9, "1,000"),
            (float("inf"), "not finite"),
        ),
    ],
)
def test_a_measured_value_has_three_significant_digits_and_thousands_separators(
    value: float, said: str
) -> None:
    assert number(value) == said


def test_durations_and_rates_have_units() -> None:
    assert [seconds(value) for value in (0.0123, 0.5, 1.234, 410.0)] == [
        "12.3 ms",
        "500 ms",
        "1.23 s",
        "410 s",
    ]
    assert [rate(value) for value in (5333.3, 4.0, 0.0412)] == [
        "5,330 samples/s",
        "4.00 samples/s",
        "0.0412 samples/s",
    ]
    assert [short_rate(v) for v in (1280, 440.2, 4.63, 0.04)] == [
        "1280/s",
        "440/s",
        "4.63/s",
        "0.0400/s",
    ]


def test_a_slow_loader_is_named_with_both_steps_where_the_median_hides_it() -> None:
    sustained = {"steps": 90, "step_seconds": 2.0, "input_seconds": 1.5}
    found = changed(
        comparison(FASTER, 40),
        sustained={**sustained, "steady_input_seconds": 0.01},
        samples_per_second={"sustained": 8.0},
    )
    for text in (tables.comparison_text(found), tables.results_text(found.baseline)):
        assert "sustained, with waits for data" in text and "8.00 samples/s, 2.00 s" in text
    said = verdict.lines(found)[1]
    assert "baseline 2.00 s (500 ms), compiler-opt 2.00 s (250 ms)" in said
    hardly = changed(found, sustained={"step_seconds": 0.51, "input_seconds": 0.02})
    assert "sustained" not in tables.results_text(hardly.baseline)
    busy = changed(found, sustained={"step_seconds": 2.0, "input_seconds": 0.1})
    assert "loader" not in tables.comparison_text(busy)


def test_the_verdict_comes_last_on_a_terminal_and_first_in_a_notebook() -> None:
    found = comparison(FASTER, 40)
    text, markdown = tables.comparison_text(found), tables.comparison_markdown(found)
    assert text.splitlines()[-3].startswith("resnet50: 2.00× as fast as PyTorch eager in fp32")
    assert markdown.startswith("**resnet50: 2.00× as fast as PyTorch eager in fp32")
    details = (
        "32.0 samples/s",
        "64.0 samples/s",
        "no GPU",
        "held-out top1 (chance 0.100)",
        "not finite",
        "batch size 16, images 48 pixels high",
    )
    before, _, folded = markdown.partition("<details>")
    for part in details:
        assert part in text and part in folded and part not in before
    assert "<details>" not in unfolded(markdown) and all(
        part in unfolded(markdown) for part in details
    )


def test_without_parity_no_speedup_appears_anywhere() -> None:
    for text in (
        tables.comparison_text(comparison(None, None)),
        tables.comparison_markdown(comparison(None, None)),
    ):
        assert "not comparable" in text
        assert "losses: 0.500 where 0.100 is allowed, step 2" in text
        assert "as fast as" not in text
        assert "FAILED" in text


@pytest.mark.parametrize(("rate_of_two", "reason"), [(60.0, False), (70.0, True)])
def test_processes_that_share_cores_have_no_efficiency(rate_of_two: float, reason: bool) -> None:
    one = changed(comparison(FASTER, 40), samples_per_second={"global": 64.0})
    several = changed(
        one, world_size=2, samples_per_second={"global": rate_of_two}, config={"batch_size": 8}
    )
    said = tables.scaling_markdown(one, several)
    assert "efficiency" not in said and "%" not in said
    assert f"| {rate_of_two / 64:.2f}× |" in said
    assert "2 share the same cores (16 samples a step alone, 8 a process together)" in said
    assert ("one process does not keep all cores at work" in said) == reason


@pytest.mark.parametrize(
    ("rate_of_two", "efficiency", "reason"), [(120.0, "94%", False), (140.0, "109%", True)]
)
def test_more_than_all_of_the_efficiency_has_its_reason(
    rate_of_two: float, efficiency: str, reason: bool
) -> None:
    one = changed(
        comparison(FASTER, 40),
        samples_per_second={"global": 64.0},
        environment={"device": "2 × A GPU"},
    )
    several = changed(one, world_size=2, samples_per_second={"global": rate_of_two})
    said = tables.scaling_markdown(one, several)
    assert efficiency in said and "scaling efficiency" in said
    assert ("More than 100 %: the two columns were measured one after the other" in said) == reason


def test_tables_are_rectangular_in_both_forms() -> None:
    rows = tables.comparison_rows(comparison(Ratio(1.0, 0.9, 1.1), None))
    assert {len(row) for row in rows} == {3}
    assert len(markdown_table(rows).splitlines()) == len(rows) + 1
    assert len(text_table(rows).splitlines()) == len(rows) + 1


def test_a_loss_that_is_not_finite_is_drawn_and_described() -> None:
    outcome = comparison(Ratio(1.0, 0.9, 1.1), None)
    chart = plots.losses(outcome)
    assert "2: not finite, not finite" in chart.alternative_text
    assert chart.draw().axes[0].get_lines()


def test_every_line_of_a_plot_differs_in_style_and_not_in_colour_alone() -> None:
    lines = plots.losses(comparison(None, None)).draw().axes[0].get_lines()
    assert len({line.get_linestyle() for line in lines}) == len(lines) == 2


def test_every_plot_has_a_table_of_what_it_shows(tmp_path: Path) -> None:
    outcome = dataclasses.replace(comparison(Ratio(2.0, 1.9, 2.1), 40), folder=str(tmp_path))
    for name, step in (("baseline", 0.5), ("compiler-opt", 0.25)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "steps.jsonl").write_text(
            json.dumps({"each_step_seconds": [9.0] * 2 + [step] * 18}) + "\n"
        )
    assert plots.losses(outcome).rows == [
        ["step", "baseline", "compiler-opt"],
        ["1", "7.00", "7.00"],
        ["2", "not finite", "not finite"],
    ]
    assert plots.step_times(outcome).rows[3] == ["50 %", "500 ms", "250 ms"]
    assert plots.break_even(outcome).rows[1:] == [
        ["0", "10.0 s", "10.0 s"],
        ["40", "30.0 s", "20.0 s"],
        ["60", "40.0 s", "25.0 s"],
    ]
    assert plots.throughput(outcome).rows[1][2:] == ["32.0 samples/s", "3.00 samples/s"]
    for plot in (plots.step_times, plots.break_even, plots.throughput):
        plot(outcome).draw().savefig("/dev/null", format="png")
