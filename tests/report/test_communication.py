"""Charts of communication say in their titles what came out, and those of a lab are emulated."""

from __future__ import annotations

import dataclasses

import made_effects
import pytest
from made_effects import effect

from gallery_lib.measure.communication.convergence import FP32, WITHOUT_FEEDBACK, Scores
from gallery_lib.measure.communication.strategies import ALONE, PLAIN, Effects
from gallery_lib.report.communication import learned, parity_rows, step_times
from gallery_lib.stats import Ratio

SAME, TWICE = Ratio(1.0, 0.95, 1.05), Ratio(2.0, 1.9, 2.1)


@pytest.fixture
def effects() -> Effects:
    return made_effects.effects()


def measured(effects: Effects, **ratios: Ratio) -> Effects:
    """Return effects with these techniques, each so much faster than DDP."""
    ways = {PLAIN: effects.ways[PLAIN]}
    for word, ratio in ratios.items():
        name = word.replace("_", " ")
        error = None if name == ALONE else 1e-8
        way = effect("bf16" if name == "bf16" else "exact", 0.4 / ratio.ratio, error)
        ways[name] = dataclasses.replace(way, ratio=ratio)
    return dataclasses.replace(effects, ways=ways)


def test_what_comes_from_a_lab_says_emulated_link_in_title_and_table(effects: Effects) -> None:
    chart = step_times(effects)
    assert "emulated link" in chart.draw().axes[0].get_title()
    assert chart.rows[0][0] == "technique (emulated link)"
    assert parity_rows(effects)[0][0] == "technique (emulated link)"


def test_step_times_have_ratio_and_verdict_and_their_names_at_the_bars(effects: Effects) -> None:
    chart = step_times(effects)
    assert chart.rows[1] == [PLAIN, "410 ms", "1, by definition", "baseline"]
    assert chart.rows[2][:2] == ["bf16", "200 ms"] and chart.rows[2][2].startswith("2.0")
    axes = chart.draw().axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        *(PLAIN, "bf16, rounds", "int8, rounds", ALONE)
    ]
    assert [text.get_text() for text in axes.texts] == [
        *("410 ms", "200 ms, 2.05×", "100 ms, 4.10×", "50.0 ms, 8.20×")
    ]


def test_the_title_says_the_networks_part_and_what_gains_of_each_kind(effects: Effects) -> None:
    limit = {"no_communication": Ratio(4, 3, 5)}
    both = measured(effects, two_streams=Ratio(1.18, 1.1, 1.2), bf16=TWICE, int8=SAME, **limit)
    assert step_times(both).title.splitlines() == [
        "The network takes 75% of DDP's step; two streams gains 1.18× and bf16 gains 2.00×",
        "2 hosts × 1 processes, emulated link",
    ]
    none = measured(effects, two_streams=SAME, bf16=SAME, no_communication=SAME)
    assert step_times(none).title.startswith(
        "The network takes no measurable part of DDP's step; no technique gains\n"
    )


def test_a_gradient_that_is_not_right_is_seen_however_fast_it_is(effects: Effects) -> None:
    assert [row[-1] for row in parity_rows(effects)[1:]] == [
        *("passed", "passed", "FAILED", "not averaged")
    ]
    assert "int8" not in step_times(effects).title
    assert effect("bf16", 0.1, 0.002, same=False).parity == "FAILED: ranks differ"
    assert effect("exact", 0.1, 0.002).parity == "FAILED"


def scores(**changed: list[float]) -> Scores:
    good = {name: [0.93, 0.95] for name in (FP32, "bf16", "int8", WITHOUT_FEEDBACK)}
    return Scores("digits", "held-out accuracy", True, {**good, **changed})


def test_learning_is_shown_seed_by_seed_with_its_noise() -> None:
    chart = learned([scores(int8=[0.2, 0.3])])
    axes = chart.draw().axes[0]
    assert [len(line.get_xdata()) for line in axes.get_lines()] == [2] * 4
    assert axes.get_xticklabels()[1].get_text() == "bf16\nmean 0.940"
    assert chart.rows[3][2] == "held-out accuracy 0.250"
    assert chart.rows[3][-3:] == ["-0.690", "± 0.028", "worse"]


def test_the_title_of_a_training_names_what_learns_less() -> None:
    bad = [0.2, 0.3]
    for shown, title in (
        (scores(), "every format learns what fp32 learns"),
        (
            scores(**{WITHOUT_FEEDBACK: bad}),
            "only int8 without error feedback learns less than fp32",
        ),
        (scores(bf16=bad, int8=bad), "only bf16 and int8 learn less than fp32"),
        (
            scores(bf16=bad, int8=bad, **{WITHOUT_FEEDBACK: bad}),
            "every other format learns less than fp32",
        ),
    ):
        assert learned([shown]).title == f"digits: {title}"
