"""Percentiles, the order of turns, and the interval of a ratio of step times.

The ratio compares two variants that took turns. Steps inside one turn share the machine's load. So
the resampled unit is the round (one turn of each variant), not the step: resampling steps would
give intervals that are too narrow (Kalibera and Jones, "Rigorous Benchmarking in Reasonable Time",
2013). Two processes that run the same code still differ (measure/comparison/pair.py).
More rounds do not average that difference out, so the interval is widened by the known spread of
processes. Figures are in seconds and plain ratios.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

CONFIDENCE = 0.99
"""Level of the intervals."""
LEAST_SPREAD = 0.004
"""Relative standard deviation of a ratio of step times that always remains.

Its source is benchmarks/trust.py.
"""


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return p50, p75, p90, p95 and mean of durations; ValueError when there are none."""
    if len(seconds) == 0:
        raise ValueError("no durations to summarise")
    p50, p75, p90, p95 = (float(v) for v in np.percentile(seconds, [50, 75, 90, 95]))
    return {"p50": p50, "p75": p75, "p90": p90, "p95": p95, "mean": float(np.mean(seconds))}


def turn_order(variants: Iterable[str], round_number: int) -> list[str]:
    """Return the variants in the order of their turns in a round, counted from 0.

    The order is A B C, then C B A (ABBA counterbalancing): linear drift falls on all alike.
    """
    order = list(variants)
    return order if round_number % 2 == 0 else order[::-1]


@dataclass(frozen=True)
class Ratio:
    """Baseline time over candidate time, with the bounds of its interval.

    A ratio above 1 means that the candidate is faster. ValueError for what is no ratio of times.
    """

    ratio: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0.0 < self.low <= self.ratio <= self.high:
            raise ValueError("a ratio must be above 0 and lie in its interval")

    @property
    def verdict(self) -> str:
        """Return `faster`, `slower`, or `no measurable difference` when the interval holds 1."""
        if self.low > 1.0:
            return "faster"
        return "slower" if self.high < 1.0 else "no measurable difference"

    def __str__(self) -> str:
        """Return the ratio as text: `1.47× (1.44 to 1.54)`."""
        return f"{self.ratio:.2f}× ({self.low:.2f} to {self.high:.2f})"


def ratio_of_medians(
    baseline_rounds: Sequence[Sequence[float]],
    candidate_rounds: Sequence[Sequence[float]],
    *,
    confidence: float = CONFIDENCE,
    resamples: int = 4000,
    process_spread: float = LEAST_SPREAD,
) -> Ratio:
    """Return the ratio of median step times, baseline over candidate, with its interval.

    The ratio is the median, over the rounds, of each round's own ratio of medians. Within a round
    both variants met about the same load of the machine. Medians over all steps of each variant
    would also carry the drift between rounds, and are a little noisier.

    Args:
        baseline_rounds: step times of the baseline in seconds, one sequence per round.
        candidate_rounds: step times of the candidate, with the same number of rounds.
        confidence: level of the bootstrap interval.
        resamples: bootstrap samples; rounds are drawn with replacement, both variants together.
        process_spread: relative standard deviation of the ratio over processes; the interval is
            widened by it, as an independent error, on each side.

    Raises:
        ValueError: with fewer than two rounds, unequal numbers of rounds, or an empty round.
    """
    rounds = len(baseline_rounds)
    shortest = min(map(len, [*baseline_rounds, *candidate_rounds]), default=0)
    if rounds < 2 or rounds != len(candidate_rounds) or shortest == 0:
        raise ValueError(
            "needs the same number (at least 2) of non-empty rounds, "
            f"got {rounds} and {len(candidate_rounds)}"
        )
    # A round's own ratio is free of drift that is slower than a round; these are resampled.
    log_ratios = np.array(
        [
            np.log(np.median(b)) - np.log(np.median(c))
            for b, c in zip(baseline_rounds, candidate_rounds, strict=True)
        ]
    )
    draws = np.random.default_rng(0).integers(0, rounds, size=(resamples, rounds))
    centre = float(np.median(log_ratios))
    deviations = np.median(log_ratios[draws], axis=1) - centre
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(deviations, [tail, 1.0 - tail])
    normal = NormalDist().inv_cdf(1.0 - tail)
    # The bootstrap takes the spread of few rounds for the true one, and is too narrow by this.
    widen = _student(normal, rounds - 1) / normal * np.sqrt(rounds / (rounds - 1.0))
    spread = process_spread * normal
    # Rounds and processes differ independently of each other.
    return _ratio(centre, np.hypot(spread, low * widen), np.hypot(spread, high * widen))


def _student(normal: float, degrees: int) -> float:
    """Return the quantile of Student's distribution where the normal one has `normal`.

    The series of Fisher and Cornish: 3 % too small at 3 degrees of freedom, 0.5 % at 5 and less
    from there on; below 3 too small to be of use.
    """
    z, n = normal, 4 * degrees
    return (
        z
        + (z**3 + z) / n
        + (5 * z**5 + 16 * z**3 + 3 * z) / (6 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (6 * n**3)
    )


def _ratio(log_centre: float, below: float, above: float) -> Ratio:
    """Return the ratio of a logarithm and what its interval has below and above that."""
    bounds = log_centre, log_centre - below, log_centre + above
    return Ratio(*(float(np.exp(bound)) for bound in bounds))


def slowest_rank(ranks: Sequence[Sequence[Sequence[float]]]) -> list[list[float]]:
    """Return step times by round of the slowest rank in each step, for which the others wait.

    Args:
        ranks: step times in seconds, by rank, round and step.
    """
    return [
        [max(step) for step in zip(*blocks, strict=True)] for blocks in zip(*ranks, strict=True)
    ]


def geometric_mean(ratios: Sequence[Ratio]) -> Ratio:
    """Return the geometric mean of independently measured ratios, with its interval.

    Errors add up as in `change_of_ratio`. The interval is that of the measurements; it says nothing
    about tasks that were not measured.
    """
    below = np.sqrt(np.sum([np.log(r.ratio / r.low) ** 2 for r in ratios])) / len(ratios)
    above = np.sqrt(np.sum([np.log(r.high / r.ratio) ** 2 for r in ratios])) / len(ratios)
    return _ratio(np.mean([np.log(r.ratio) for r in ratios]), below, above)


def change_of_ratio(before: Ratio, after: Ratio) -> Ratio:
    """Return `after` over `before`, two ratios that were measured independently.

    The verdict is `faster` when the ratio has grown. The relative errors are independent, so on
    each side they add up as the root of the sum of squares.
    """
    below = np.hypot(np.log(after.ratio / after.low), np.log(before.high / before.ratio))
    above = np.hypot(np.log(after.high / after.ratio), np.log(before.ratio / before.low))
    return _ratio(np.log(after.ratio / before.ratio), below, above)
