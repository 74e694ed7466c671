"""Verdict on a baseline and a candidate that took turns: parity and speed-up, over all starts."""

from __future__ import annotations

from collections.abc import Sequence

from gallery_lib import stats
from gallery_lib.measure.comparison import parity, process_spread
from gallery_lib.measure.comparison.float64_reference import Reference
from gallery_lib.measure.comparison.measurement import Measurement
from gallery_lib.measure.comparison.result import Parity

Pair = tuple[Measurement, Measurement]
"""A baseline and a candidate that took turns with one another."""


def parity_of(pair: Pair, exact: Reference, steps: int) -> Parity:
    """Return whether two variants compute the same training.

    What counts are the first `steps` losses and the probed gradients.
    """
    baseline, candidate = pair
    levels = [variant.results.config["amp_level"] for variant in pair]
    losses = [[loss for _, loss in variant.results.loss["curve"][:steps]] for variant in pair]
    return parity.judge(
        (losses[0], losses[1], exact.losses),
        (baseline.probe, candidate.probe, exact.probe),
        levels[1],
        same_precision=levels[0] == levels[1],
        diverged={
            "the baseline": baseline.results.diverged_at,
            "the candidate": candidate.results.diverged_at,
        },
    )


def parity_of_all(pairs: Sequence[Pair], exact: Reference, steps: int) -> Parity:
    """Return the parity of two variants that were started several times: it must hold each time.

    The result is that of the first start that lacks parity, otherwise that of the first start.
    """
    verdicts = [parity_of(pair, exact, steps) for pair in pairs]
    return next((verdict for verdict in verdicts if not verdict.passed), verdicts[0])


def speedup(pair: Pair, confidence: float) -> stats.Ratio:
    """Return baseline time over candidate time; the interval allows for the process spread."""
    baseline, candidate = pair
    return stats.ratio_of_medians(
        baseline.rounds,
        candidate.rounds,
        confidence=confidence,
        process_spread=process_spread.of_ratio(baseline.results, candidate.results),
    )


def speedup_of_all(pairs: Sequence[Pair], confidence: float) -> stats.Ratio:
    """Return the geometric mean of the speed-ups of two variants over several starts."""
    return stats.geometric_mean([speedup(pair, confidence) for pair in pairs])
