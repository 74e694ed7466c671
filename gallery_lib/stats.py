"""Percentiles, and the interval of a ratio of step times.

The ratio compares two variants that took turns. Steps inside one turn share the machine's mood, so the unit that
is resampled is the round (one turn of each variant), not the step: resampling steps would give intervals that are
too narrow (Kalibera and Jones, "Rigorous Benchmarking in Reasonable Time", 2013). Two processes that run the very
same code still differ (measure/process_spread.py); more rounds do not average that out, so the interval is widened
by what is known of it. Figures in seconds and plain ratios.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

LEAST_SPREAD = 0.004
"""Relative standard deviation of a ratio of step times that is left in any case (see benchmarks/trust.py)."""


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """p50, p75, p90, p95 and mean of durations, by linear interpolation. Raises ValueError when there are none."""
    if len(seconds) == 0:
        raise ValueError("no durations to summarise")
    p50, p75, p90, p95 = (float(v) for v in np.percentile(seconds, [50, 75, 90, 95]))
    return {"p50": p50, "p75": p75, "p90": p90, "p95": p95, "mean": float(np.mean(seconds))}


@dataclass(frozen=True)
class Ratio:
    """Baseline time over candidate time (above 1: the candidate is faster), with the bounds of its interval."""

    ratio: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """`faster`, `slower`, or `no measurable difference` when the interval holds 1."""
        if self.low > 1.0:
            return "faster"
        return "slower" if self.high < 1.0 else "no measurable difference"

    def __str__(self) -> str:
        """`1.47× (1.44 to 1.54)`."""
        return f"{self.ratio:.2f}× ({self.low:.2f} to {self.high:.2f})"


def ratio_of_medians(
    baseline_rounds: Sequence[Sequence[float]],
    candidate_rounds: Sequence[Sequence[float]],
    *,
    confidence: float = 0.99,
    resamples: int = 4000,
    process_spread: float = LEAST_SPREAD,
    seed: int = 0,
) -> Ratio:
    """Ratio of median step times in a round, baseline over candidate; its median over the rounds, and the interval of that.

    Within a round both had the machine in about the same mood. The medians over all steps of each would carry the
    drift between rounds as well, and are a little noisier.

    Args:
        baseline_rounds, candidate_rounds: step times in seconds, one sequence per round, the same number of rounds.
        confidence: level of the bootstrap interval (rounds are drawn with replacement, both variants together).
        process_spread: relative standard deviation of the ratio over processes; the interval is widened by its share on each side.

    Raises ValueError with fewer than two rounds or an empty one.
    """
    rounds = len(baseline_rounds)
    if (
        rounds != len(candidate_rounds)
        or rounds < 2
        or any(len(r) == 0 for r in (*baseline_rounds, *candidate_rounds))
    ):
        raise ValueError(
            f"needs the same number (at least 2) of non-empty rounds, got {rounds} and {len(candidate_rounds)}"
        )
    # A round's own ratio is free of drift that is slower than a round; the spread of these ratios is what is resampled.
    log_ratios = np.array(
        [
            np.log(np.median(b)) - np.log(np.median(c))
            for b, c in zip(baseline_rounds, candidate_rounds, strict=True)
        ]
    )
    draws = np.random.default_rng(seed).integers(0, rounds, size=(resamples, rounds))
    centre = float(np.median(log_ratios))
    deviations = np.median(log_ratios[draws], axis=1) - centre
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(deviations, [tail, 1.0 - tail])
    widen = np.sqrt(
        rounds / (rounds - 1.0)
    )  # the bootstrap of few rounds is too narrow by about that
    spread = process_spread * NormalDist().inv_cdf(1.0 - tail)
    low_bound, high_bound = (
        np.exp(centre + low * widen - spread),
        np.exp(centre + high * widen + spread),
    )
    return Ratio(ratio=float(np.exp(centre)), low=float(low_bound), high=float(high_bound))


def slowest_rank(ranks: Sequence[Sequence[Sequence[float]]]) -> list[list[float]]:
    """Step times by round, of the rank that took longest over each step (the others wait for it), from those of each rank."""
    return [
        [max(step) for step in zip(*blocks, strict=True)] for blocks in zip(*ranks, strict=True)
    ]


def geometric_mean(ratios: Sequence[Ratio]) -> Ratio:
    """The geometric mean of ratios that were measured independently, and its interval (errors add up as in `change_of_ratio`).

    The interval is that of the measurements; it says nothing about tasks that were not measured. ValueError when empty.
    """
    if not ratios:
        raise ValueError("no ratios to take the mean of")
    centre = float(np.exp(np.mean([np.log(r.ratio) for r in ratios])))
    below = np.sqrt(np.sum([np.log(r.ratio / r.low) ** 2 for r in ratios])) / len(ratios)
    above = np.sqrt(np.sum([np.log(r.high / r.ratio) ** 2 for r in ratios])) / len(ratios)
    return Ratio(
        ratio=centre, low=float(centre * np.exp(-below)), high=float(centre * np.exp(above))
    )


def change_of_ratio(before: Ratio, after: Ratio) -> Ratio:
    """`after` over `before`, two ratios that were measured independently (so: verdict `faster` when the ratio has grown).

    Their relative errors add up as independent ones do, by the root of the sum of squares, on each side.
    """
    below = np.hypot(np.log(after.ratio / after.low), np.log(before.high / before.ratio))
    above = np.hypot(np.log(after.high / after.ratio), np.log(before.ratio / before.low))
    change = after.ratio / before.ratio
    return Ratio(
        ratio=change, low=float(change * np.exp(-below)), high=float(change * np.exp(above))
    )
