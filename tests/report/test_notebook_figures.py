"""The figures of task notebooks say in their titles what came out."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from gallery_lib.measure.bench.result import Bench, Outcome, Row
from gallery_lib.measure.profile.step_profile import OUTSIDE, StepProfile
from gallery_lib.report import bench_chart, style, training_charts
from gallery_lib.report.names import MEANINGS


def in_one_line(title: str) -> str:
    return " ".join(title.split())


FALLING = [6.0, 5.0, 4.0, 3.0]


@pytest.mark.parametrize(
    ("curves", "title"),
    [
        ({"plain": FALLING}, "The loss fell in the second pass, from 5.50 to 3.50"),
        (
            {"plain": FALLING, "accelerated": [6.0, 5.0, 4.1, 3.1]},
            "Both losses fell in the second pass, from 5.50 to 3.50 and 3.60",
        ),
        (
            {"plain": [6.0, 2.0, 6.0, 2.0]},  # no learning, and another loss for each batch
            "No loss fell in the second pass: from 4.00 to 4.00",
        ),
        ({"plain": [6.0, 6.1, 6.2, 6.3]}, "No loss fell in the second pass: from 6.05 to 6.25"),
        (
            {"plain": FALLING, "accelerated": [6.0, 5.0, float("nan"), float("nan")]},
            "The loss of accelerated did not fall in the second pass: from 5.50 to 3.50 and "
            "not finite",
        ),
        ({"plain": [6.0]}, "No loss fell in the second pass: from 6.00 to 6.00"),
    ],
)
def test_a_curve_that_does_not_fall_is_called_so(curves: dict[str, Any], title: str) -> None:
    chart = training_charts.losses(curves)
    assert chart.title == title
    assert in_one_line(chart.draw().axes[0].get_title()) == title


def test_the_table_of_losses_has_every_step() -> None:
    rows = training_charts.losses({"plain": FALLING, "accelerated": FALLING[:2]}).rows
    assert rows[0] == ["step", "plain", "accelerated"]
    assert rows[1:] == [
        ["1", "6.00", "6.00"],
        ["2", "5.00", "5.00"],
        ["3", "4.00", ""],
        ["4", "3.00", ""],
    ]


BEFORE = StepProfile({"convolutions": 0.06, "batch norms": 0.03, OUTSIDE: 0.01})
AFTER = StepProfile(
    {"convolutions": 0.05, "kernels that the compiler fused": 0.005, OUTSIDE: 0.005}
)


def test_a_profile_names_its_two_largest_groups() -> None:
    title = "60% of a step is convolutions, 30% batch norms"
    chart = training_charts.profile({"before": BEFORE})
    assert chart.title == title
    assert in_one_line(chart.draw().axes[0].get_title()) == title


def test_two_profiles_name_what_was_saved_most() -> None:
    chart = training_charts.profile({"before": BEFORE, "after": AFTER})
    assert chart.title == "Batch norms: 30.0 ms before, 0 ms after"
    rows = chart.rows
    assert rows[0] == ["group of operators", "before, ms (share)", "after, ms (share)"]
    assert rows[1] == ["convolutions", "60.0 (60%)", "50.0 (83%)"]
    assert rows[-1] == ["step", "100", "60.0"]
    legend = chart.draw().axes[0].get_legend().get_texts()
    assert [text.get_text() for text in legend] == ["before: 100 ms", "after: 60.0 ms"]


def waterfall(*ratios: tuple[str, str, float], absent: str = "", width: float = 0.05) -> Bench:
    row = Row(
        None,
        step_seconds={"p50": 0.1},
        samples_per_second={"global": 80.0, "whole_run": 40.0},
        startup_seconds={"total": 9.0},
        parity={"passed": True, "checks": []},
    )
    rows = dict.fromkeys(["eager-O1", "layout", "compiler"], row)
    if absent:
        rows[absent] = Row("does not apply: this CPU has no AVX-512")
    with_interval = [(a, b, r, r - width, r + width) for a, b, r in ratios]
    outcome = Outcome("d", "2026-01-01", 1.0, None, {}, {"copy": 1e10}, rows, with_interval)
    return Bench("waterfall", "", {}, {"device": "cpu"}, {}, {"resnet50": outcome})


GAIN = (("eager-O1", "layout", 1.1), ("eager-O1", "compiler", 1.65), ("layout", "compiler", 1.5))


def test_a_waterfall_names_the_technique_that_gains_most() -> None:
    chart = bench_chart.chart(waterfall(*GAIN))
    title = "All together 1.65× as fast as eager in bf16; most comes with compiler, 1.50×"
    assert chart.title == title
    assert in_one_line(chart.draw().get_suptitle()) == title
    assert [row[:4] for row in chart.rows[2:]] == [
        ["+ layout", "100 ms", "1.10× (1.05 to 1.15)", ""],
        ["+ compiler", "100 ms", "1.65× (1.60 to 1.70)", "1.50× (1.45 to 1.55)"],
    ]
    assert [row[-1] for row in chart.rows[2:]] == [MEANINGS["layout"], MEANINGS["compiler"]]


def test_a_technique_that_does_not_apply_stays_with_its_reason() -> None:
    chart = bench_chart.chart(waterfall(("eager-O1", "compiler", 1.2), absent="layout"))
    assert chart.title.endswith("most comes with compiler, 1.20×")
    assert chart.rows[2][-2] == "does not apply: this CPU has no AVX-512"
    assert "+ layout: does not apply: this CPU" in chart.alternative_text


def test_no_gain_is_said() -> None:
    slower = waterfall(
        ("eager-O1", "layout", 0.9), ("eager-O1", "compiler", 0.8), ("layout", "compiler", 0.9)
    )
    assert bench_chart.chart(slower).title == (
        "All together 0.80× as fast as eager in bf16; "
        "what a single technique gains is not measurable"
    )
    unclear = waterfall(("eager-O1", "layout", 1.02), width=17.0)
    assert bench_chart.chart(unclear).title.startswith(
        "All together: not measurable (1.02× (-15.98 to 18.02) of eager in bf16)"
    )
    nothing = bench_chart.chart(waterfall())
    assert nothing.title == "No technique could be compared with the baseline"


def test_one_long_whisker_is_cut_and_squeezes_no_bar() -> None:
    bench = waterfall(("eager-O1", "layout", 1.2), width=16.0)
    axes = bench_chart.chart(bench).draw().axes[0]
    assert axes.get_xlim()[1] < 2.5
    assert "1.20× (to 17.2)" in [text.get_text() for text in axes.texts]


@pytest.mark.parametrize(("one", "other"), [*itertools.combinations(style.COLOURS, 2)])
def test_who_is_shown_is_told_apart_by_colour_also_on_paper(one: str, other: str) -> None:
    for colour in (one, other):
        assert 1.05 / (luminance(colour) + 0.05) >= 3.0  # contrast to the white background
    red_green_blind = [np.array(to_rgb(c)) @ PROTANOPIA for c in (one, other)]
    assert np.linalg.norm(red_green_blind[0] - red_green_blind[1]) > 0.2


PROTANOPIA = np.array([[0.152, 0.115, -0.004], [1.053, 0.786, -0.048], [-0.205, 0.099, 1.052]])
"""Colours as those see them who lack one kind of cones (Machado et al., 2009), transposed."""


def luminance(colour: str) -> float:
    parts = [c / 12.92 if c <= 0.04 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return float(np.dot(parts, [0.2126, 0.7152, 0.0722]))
