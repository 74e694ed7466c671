"""The confidence interval of a ratio of step times."""

import numpy as np
import pytest

from gallery_lib import stats
from gallery_lib.stats import Ratio, geometric_mean, percentiles, ratio_of_medians, turn_order


def drifting_rounds(
    rng: np.random.Generator, rounds: int, slowdown: float, noise: float
) -> tuple[list, list]:
    """Return two variants on a machine whose speed drifts by 30 % over the run.

    It also jitters from turn to turn.
    """
    variants: tuple[list, list] = ([], [])
    for number in range(rounds):
        drift = 0.1 * (1.0 + 0.3 * number / rounds)
        for turns, seconds in zip(variants, (drift, slowdown * drift), strict=True):
            turns.append(list(seconds * rng.lognormal(0, 0.01) * rng.lognormal(0, noise, 7)))
    return variants


def verdicts(slowdown: float, runs: int = 200) -> list[str]:
    rng = np.random.default_rng(1)
    return [
        ratio_of_medians(*drifting_rounds(rng, 12, slowdown, 0.03), resamples=500).verdict
        for _ in range(runs)
    ]


def test_equal_variants_are_nearly_always_called_so_and_five_percent_nearly_always_found():
    assert verdicts(1.0).count("no measurable difference") >= 196
    assert verdicts(1.05).count("slower") >= 190


@pytest.mark.parametrize("rounds", [4, 8])
def test_a_99_percent_interval_misses_about_one_in_a_hundred_however_few_the_rounds(rounds):
    noise = np.random.default_rng(rounds).standard_t(3, (1000, rounds))
    intervals = [
        ratio_of_medians(
            np.exp(0.05 * one)[:, None], np.ones((rounds, 1)), resamples=400, process_spread=0
        )
        for one in noise
    ]
    missed = sum(not one.low <= 1 <= one.high for one in intervals)
    assert missed <= (35 if rounds == 4 else 22)


def test_the_interval_holds_the_ratio_and_names_the_direction():
    result = ratio_of_medians(
        [[2.0, 2.1], [2.0, 2.05], [2.1, 2.0]], [[1.0, 1.02], [1.0, 1.01], [1.03, 1.0]]
    )
    assert result.low <= result.ratio <= result.high
    assert result.ratio == pytest.approx(2.0, rel=0.05)
    assert result.verdict == "faster"


def test_what_processes_are_not_alike_in_widens_the_interval_whatever_the_turns_say():
    turns = [[1.0, 1.0]] * 50, [[0.9, 0.9]] * 50
    narrow, wide = (ratio_of_medians(*turns, process_spread=spread) for spread in (0.0, 0.05))
    assert (narrow.low, narrow.high) == pytest.approx((10 / 9, 10 / 9))
    sides = np.log([wide.high / wide.ratio, wide.ratio / wide.low])
    assert sides == pytest.approx(2.576 * 0.05, rel=1e-3)
    assert (narrow.verdict, wide.verdict) == ("faster", "no measurable difference")


@pytest.mark.parametrize(
    ("a", "b"),
    [([], []), ([[1.0]], [[1.0]]), ([[1.0], []], [[1.0], [1.0]]), ([[1.0], [1.0]], [[1.0]])],
)
def test_too_little_data_is_refused(a, b):
    with pytest.raises(ValueError, match="rounds"):
        ratio_of_medians(a, b)


def test_percentiles_are_those_of_the_durations():
    values = {"p50": 3.0, "p75": 4.0, "p90": 4.6, "p95": 4.8, "mean": 3.0}
    assert percentiles([1.0, 2.0, 3.0, 4.0, 5.0]) == values
    with pytest.raises(ValueError, match="no durations"):
        percentiles([])


def test_the_order_of_turns_reverses_from_round_to_round():
    variants = {"A": 1, "B": 2, "C": 3}
    turns = [name for number in range(4) for name in turn_order(variants, number)]
    assert "".join(turns) == "ABCCBAABCCBA"


def test_the_geometric_mean_of_equal_ratios_is_that_ratio_known_better():
    one = Ratio(1.5, 1.4, 1.6)
    mean = geometric_mean([one] * 4)
    assert mean.ratio == pytest.approx(1.5)
    assert 1.4 < mean.low < 1.5 < mean.high < 1.6
    assert geometric_mean([Ratio(2.0, 1.9, 2.1), Ratio(0.5, 0.4, 0.6)]).ratio == pytest.approx(1.0)


def test_the_change_of_a_ratio_has_both_errors_in_its_interval():
    before, after = Ratio(2.0, 1.8, 2.2), Ratio(1.0, 0.97, 1.03)
    change = stats.change_of_ratio(before, after)
    assert change.ratio == 0.5
    assert change.low == pytest.approx(0.5 * 0.9048, rel=0.01)  # ≈ exp(−hypot(ln 1.1, ln 1/0.97))
    assert change.high == pytest.approx(0.5 * 1.1154, rel=0.01)
    assert stats.change_of_ratio(before, before).verdict == "no measurable difference"
