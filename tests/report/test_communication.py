"""Charts of communication say in their titles what came out, and those of a lab are emulated."""

import dataclasses

import pytest

from gallery_lib.config import Comm
from gallery_lib.measure.communication.convergence import FP32, Scores
from gallery_lib.measure.communication.strategies import ALONE, PLAIN, Effect, Effects
from gallery_lib.report.communication import learned_rows, parity_rows, step_times
from gallery_lib.stats import Ratio, ratio_of_medians

SAME, TWICE = Ratio(1.0, 0.95, 1.05), Ratio(2.0, 1.9, 2.1)
BASELINE = [[0.4, 0.42], [0.41, 0.43], [0.4, 0.41], [0.4, 0.42]]


def effect(wire: str, seconds: float, error: float | None, same: bool = True) -> Effect:
    """Return the effect of a technique whose steps take `seconds`, in four rounds."""
    rounds = [[seconds, seconds], [seconds, seconds * 1.01], [seconds, seconds], [seconds, seconds]]
    ratio = ratio_of_medians(BASELINE, rounds)
    return Effect(dataclasses.asdict(Comm(wire=wire)), rounds, ratio, 4.2 * 2**20, error, same)


@pytest.fixture
def effects() -> Effects:
    """Return effects of DDP, bf16, int8 with wrong gradients, and no communication."""
    plain = dataclasses.replace(effect("exact", 0.4, 3e-8), ratio=None, rounds=BASELINE)
    ways = {
        PLAIN: plain,
        "bf16": effect("bf16", 0.2, 0.002),
        "int8": effect("int8", 0.1, 0.5),
        ALONE: effect("exact", 0.05, None),
    }
    return Effects("2 hosts × 1 processes", 1_000_000, ways)


def measured(effects: Effects, ratios: dict[str, Ratio]) -> Effects:
    """Return effects with these techniques, each so much faster than DDP."""
    ways = {PLAIN: effects.ways[PLAIN]}
    for name, ratio in ratios.items():
        way = effect("exact", 0.4 / ratio.ratio, None if name == ALONE else 1e-8)
        ways[name] = dataclasses.replace(way, ratio=ratio)
    return dataclasses.replace(effects, ways=ways)


def test_step_times_have_ratio_and_verdict_their_names_at_the_bars_and_an_emulated_link(
    effects: Effects,
) -> None:
    chart = step_times(effects)
    assert chart.rows[0][0] == parity_rows(effects)[0][0] == "technique (emulated link)"
    assert chart.rows[1] == [PLAIN, "410 ms", "1, by definition", "baseline"]
    assert chart.rows[2][:2] == ["bf16", "200 ms"] and chart.rows[2][2].startswith("2.0")
    axes = chart.draw().axes[0]
    assert "emulated link" in axes.get_title()
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        *(PLAIN, "bf16, rounds", "int8, rounds", ALONE)
    ]
    assert [text.get_text() for text in axes.texts] == [
        *("410 ms", "200 ms, 2.05×", "100 ms, 4.10×", "50.0 ms, 8.20×")
    ]


def test_the_title_has_the_largest_certain_gain(effects: Effects) -> None:
    both = measured(effects, {"streams": Ratio(1.18, 1.1, 1.2), "bf16": TWICE, "int8": SAME})
    assert step_times(both).title.splitlines() == [
        "A step of DDP's own way takes 410 ms; bf16 gains most, 2.00×",
        "2 hosts × 1 processes, emulated link",
    ]
    none = measured(effects, {"streams": SAME, "bf16": SAME, ALONE: SAME})
    assert "410 ms; no technique gains\n" in step_times(none).title


def test_a_gradient_that_is_not_right_is_seen_however_fast_it_is(effects: Effects) -> None:
    assert [row[-1] for row in parity_rows(effects)[1:]] == [
        *("passed", "passed", "FAILED", "not averaged")
    ]
    assert "int8" not in step_times(effects).title
    assert effect("bf16", 0.1, 0.002, same=False).parity == "FAILED: ranks differ"
    assert effect("exact", 0.1, 0.002).parity == "FAILED"


def test_learning_is_shown_seed_by_seed_with_its_noise_and_judged_by_its_mean() -> None:
    by_format = {FP32: [0.93, 0.95], "bf16": [0.92, 0.95], "fp16": [0.98, 1.0], "int8": [0.2, 0.3]}
    rows = learned_rows(Scores(by_format))
    assert rows[4] == ["int8", "0.250", "0.200, 0.300", "-0.690", "± 0.028", "worse"]
    assert [row[-1] for row in rows[2:]] == ["within noise", "better", "worse"]
