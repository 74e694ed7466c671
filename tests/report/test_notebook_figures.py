"""The figures of task notebooks say in their titles what came out."""

from __future__ import annotations

from typing import Any

import pytest

from gallery_lib.measure.bench.result import Bench, Outcome, Row
from gallery_lib.measure.profile.operator_groups import OUTSIDE
from gallery_lib.measure.profile.step_profile import StepProfile
from gallery_lib.report import profile_plots, training_plots, waterfall_plots

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
    assert training_plots.title(curves) == title
    assert training_plots.figure(curves).axes[0].get_title() == title
    assert title in training_plots.text(curves)


def test_the_table_of_losses_has_every_step() -> None:
    rows = training_plots.rows({"plain": FALLING, "accelerated": FALLING[:2]})
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
    assert profile_plots.title({"before": BEFORE}) == title
    assert profile_plots.figure({"before": BEFORE}).axes[0].get_title() == title


def test_two_profiles_name_what_was_saved_most() -> None:
    profiles = {"before": BEFORE, "after": AFTER}
    assert profile_plots.title(profiles) == "Batch norms: 30.0 ms before, 0 ms after"
    rows = profile_plots.rows(profiles)
    assert rows[0] == ["group of operators", "before, ms (share)", "after, ms (share)"]
    assert rows[1] == ["convolutions", "60.0 (60%)", "50.0 (83%)"]
    assert rows[-1] == ["step", "100", "60.0"]
    assert "A step takes 100 ms before, 60.0 ms after" in profile_plots.text(profiles)


def waterfall(*ratios: tuple[str, str, float], absent: str = "") -> Bench:
    names = ["eager-fp32", "layout", "compiler"]
    rows = {name: Row(None, step_seconds={"p50": 0.1}) for name in names}
    if absent:
        rows[absent] = Row("does not apply: this CPU has no AVX-512")
    with_interval = [(a, b, r, r - 0.05, r + 0.05) for a, b, r in ratios]
    outcome = Outcome("d", "2026-01-01T00:00:00", 1.0, None, {}, {}, rows, with_interval)
    return Bench("waterfall", "", {}, {}, {}, {"resnet50": outcome})


def test_a_waterfall_names_the_technique_that_gains_most() -> None:
    bench = waterfall(
        ("eager-fp32", "layout", 1.1), ("eager-fp32", "compiler", 1.65), ("layout", "compiler", 1.5)
    )
    title = "Most is gained with compiler (1.50×); all together 1.65× as fast as eager-fp32"
    assert waterfall_plots.title(bench) == title
    assert waterfall_plots.figure(bench).axes[0].get_title() == title
    assert waterfall_plots.rows(bench)[1:] == [
        ["eager-fp32", "100 ms", "1", "", ""],
        ["+ layout", "100 ms", "1.10× (1.05 to 1.15)", "1.10× (1.05 to 1.15)", "passed"],
        ["+ compiler", "100 ms", "1.65× (1.60 to 1.70)", "1.50× (1.45 to 1.55)", "passed"],
    ]


def test_a_technique_that_does_not_apply_stays_with_its_reason() -> None:
    bench = waterfall(("eager-fp32", "compiler", 1.2), absent="layout")
    assert waterfall_plots.title(bench).startswith("Most is gained with compiler (1.20×)")
    assert waterfall_plots.rows(bench)[2][-1] == "does not apply: this CPU has no AVX-512"
    assert "with layout not measured" in waterfall_plots.text(bench)


def test_no_gain_is_said() -> None:
    slower = waterfall(
        ("eager-fp32", "layout", 0.9), ("eager-fp32", "compiler", 0.8), ("layout", "compiler", 0.9)
    )
    expected = (
        "No technique certainly gains here; all together 0.80× as fast as eager-fp32, 0.75 to 0.85"
    )
    assert waterfall_plots.title(slower) == expected
    assert waterfall_plots.title(waterfall()) == "No technique could be compared with the baseline"
