"""Figures say in their titles what came out; their alternative text is title and table."""

import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from made_comparison import FASTER, comparison
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from gallery_lib.measure.comparison.script_turns import Script, ScriptTurns
from gallery_lib.measure.step_profile import OUTSIDE, StepProfile
from gallery_lib.report import plots, style
from gallery_lib.report.style import Chart
from gallery_lib.system.machine_load import MachineLoad


def test_the_alternative_text_is_the_title_and_the_first_rows_without_markup() -> None:
    rows = [["", "step", "note"], ["[BERT](hf_Bert.ipynb)", "410 ms", ""], ["a\\_b", "1 s", "x"]]
    assert Chart("Two models\nemulated link", rows, Figure).alternative_text == (
        "Two models; emulated link. Columns: step, note. BERT: 410 ms; a_b: 1 s, x."
    )
    rows = [["step", "loss"], *([str(n), f"{n}.0"] for n in range(1, 21))]
    words = Chart("The loss fell", rows, Figure).alternative_text
    assert words.endswith("12: 12.0; 8 more rows are in the table.") and "13.0" not in words


PROTANOPIA = np.array([[0.152, 0.115, -0.004], [1.053, 0.786, -0.048], [-0.205, 0.099, 1.052]])
"""Colours as those see them who lack one kind of cones (Machado et al., 2009), transposed."""


def luminance(colour: str) -> float:
    parts = [c / 12.92 if c <= 0.04 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return float(np.dot(parts, [0.2126, 0.7152, 0.0722]))


@pytest.mark.parametrize(("one", "other"), [*itertools.combinations(style.COLOURS, 2)])
def test_who_is_shown_is_told_apart_by_colour_also_on_paper(one: str, other: str) -> None:
    for colour in (one, other):
        assert 1.05 / (luminance(colour) + 0.05) >= 3.0  # contrast to the white background
    red_green_blind = [np.array(to_rgb(c)) @ PROTANOPIA for c in (one, other)]
    assert np.linalg.norm(red_green_blind[0] - red_green_blind[1]) > 0.2


# --------------------------------------------------------------------------------------------------
# A comparison


def test_every_plot_of_a_comparison_has_a_table_of_what_it_shows(tmp_path: Path) -> None:
    outcome = dataclasses.replace(comparison(FASTER, 40), folder=str(tmp_path))
    for name, step in (("baseline", 0.5), ("compiler-opt", 0.25)):
        (tmp_path / name).mkdir()
        times = json.dumps({"each_step_seconds": [9.0] * 2 + [step] * 18})
        (tmp_path / name / "steps.jsonl").write_text(times + "\n")
    assert plots.losses(outcome).rows == [
        ["step", "baseline", "compiler-opt"],
        ["1", "7.00", "7.00"],
        ["2", "not finite", "not finite"],
    ]
    assert plots.throughput(outcome).rows[1][2:] == ["32.0 samples/s", "3.00 samples/s"]
    for plot in (plots.throughput, plots.losses):
        lines = plot(outcome).draw().axes[0].get_lines()
        assert len({line.get_linestyle() for line in lines[:2]}) == 2  # not in colour alone


# --------------------------------------------------------------------------------------------------
# Training in the notebook's kernel

FALLING = [6.0, 5.0, 4.0, 3.0]
NAN = float("nan")


@pytest.mark.parametrize(
    ("curves", "title"),
    [
        ({"plain": FALLING}, "The loss fell in the second pass, from 5.50 to 3.50"),
        (
            {"plain": FALLING, "accelerated": [6.0, 5.0, 4.1, 3.1]},
            "Both losses fell in the second pass, from 5.50 to 3.50 and 3.60",
        ),
        # no learning, and another loss for each batch
        ({"plain": [6.0, 2.0, 6.0, 2.0]}, "No loss fell in the second pass: from 4.00 to 4.00"),
        (
            {"plain": FALLING, "accelerated": [6.0, 5.0, NAN, NAN]},
            "The loss of accelerated did not fall in the second pass: from 5.50 to 3.50 and "
            "not finite",
        ),
        ({"plain": [6.0]}, "No loss fell in the second pass: from 6.00 to 6.00"),
    ],
)
def test_a_curve_that_does_not_fall_is_called_so(
    curves: dict[str, list[float]], title: str
) -> None:
    chart = plots.training(curves)
    assert chart.title == " ".join(chart.draw().axes[0].get_title().split()) == title
    assert len(chart.rows) == 1 + len(curves["plain"])


def test_profiles_have_the_largest_groups_first() -> None:
    before = StepProfile({"convolutions": 0.06, "batch norms": 0.03, OUTSIDE: 0.01})
    after = StepProfile({"convolutions": 0.05, "fused": 0.005, OUTSIDE: 0.005})
    chart = plots.profile({"before": before, "after": after})
    assert chart.title == "A step by groups of operators: before 100 ms, after 60.0 ms"
    assert chart.rows[1] == ["convolutions", "60.0 (60%)", "50.0 (83%)"]
    assert chart.rows[-1] == ["step", "100", "60.0"]
    legend = chart.draw().axes[0].get_legend().get_texts()
    assert [text.get_text() for text in legend] == ["before: 100 ms", "after: 60.0 ms"]


# --------------------------------------------------------------------------------------------------
# Scripts that took turns

QUIET, BUSY = MachineLoad(0.0), MachineLoad(0.0, 0.5)


def turns_of(
    rates: dict[str, float], losses: dict[str, float] | None = None, load: MachineLoad = QUIET
) -> ScriptTurns:
    """Return turns of scripts with these throughputs; all but `several` have native's batches."""
    scripts = {
        name: Script(
            *(Path("script.py"), [], f"conditions of {name}", None),
            starts_like=None if name in ("native", "several") else "native",
            tolerance=0.01,
        )
        for name in rates
    }
    rounds = {name: [[rate, rate * 1.01]] * 6 for name, rate in rates.items()}
    return ScriptTurns(scripts, {**dict.fromkeys(rates, 4.6), **(losses or {})}, rounds, load)


@pytest.mark.parametrize(
    ("accelerated", "several", "title"),
    [
        (20, 11, "accelerated is 2.00× as fast as native"),
        (5, 5, "No script is certainly faster than native"),
        (10.1, 10, "No script is certainly faster than native"),
        (20, 40, "several is 4.00× as fast as native"),
    ],
)
def test_the_title_of_turns_says_what_came_out(
    accelerated: float, several: float, title: str
) -> None:
    turns = turns_of({"native": 10, "accelerated": accelerated, "several": several})
    shown = plots.script_turns(turns)
    assert shown.title == shown.draw().get_suptitle() == title


def test_the_table_of_turns_has_ratio_first_loss_and_conditions_of_each_script() -> None:
    turns = turns_of({"native": 10, "accelerated": 20, "several": 40}, {"accelerated": 4.61})
    header, native, accelerated, several = plots.script_turns(turns).rows
    assert header[2] == "times as fast as native"
    assert native == ["native", "10.1 samples/s", "1", "4.6000", "", "conditions of native"]
    assert accelerated[2].startswith("2.00× (1.") and accelerated[3] == "4.6100"
    assert accelerated[4] == "first loss 0.22% from native's; at most 1.0%"
    assert several[4].startswith("not checked") and several[5] == "conditions of several"
    assert "Rounds: 6, with 2 counted" in plots.script_notes(turns)[0]


def test_without_parity_there_is_a_reason_and_no_ratio_anywhere() -> None:
    shown = plots.script_turns(turns_of({"native": 10, "accelerated": 20}, {"accelerated": 4.9}))
    assert "no ratio" in shown.alternative_text and "2.00" not in shown.alternative_text
    assert "NO: first loss 6.52% from native's" in shown.alternative_text
    assert shown.title == "No script is certainly faster than native"
    assert [t.get_text() for t in shown.draw().axes[0].texts] == ["not comparable"]


def test_a_busy_machine_is_noted_and_no_speed_is_drawn() -> None:
    quiet, busy = (turns_of({"native": 1, "several": 2}, load=load) for load in (QUIET, BUSY))
    assert not any("busy" in note for note in plots.script_notes(quiet))
    assert "busy**: threads with work to do waited for a core 50%" in plots.script_notes(busy)[-1]
    shown = plots.script_turns(busy)
    assert "busy, so no speed is drawn" in shown.title
    assert [bar.get_width() for bar in shown.draw().axes[0].patches] == [1.0]  # of native
    assert shown.rows[2][2].endswith(", not judged: busy")
