"""Parity of gradients: does the candidate's backward pass compute what the baseline's does?

Checks 2 and 3 of parity.py, per parameter, on the gradients that the probe kept. Parameters whose
gradient is zero except for rounding (a bias before batch norm) are left out.

Check 2 looks at the first batch. Check 3 sees what it cannot: under bfloat16 the gradients of a
deep network are a fifth noise, which adds its square to the squared length. The two may have
different amounts of noise, which check 2 has found to be small enough, and which is measured on the
batches that the lengths come from. Then the one with more may be longer by what that explains:
hardly for a fifth, and by 0.20 for 0.5 against 0.9. A factor of 1.1 is seen in a gradient that is
up to nine tenths noise.

It may be the baseline that is off. So a candidate is right, whatever the baseline is, under two
conditions:

- Its norm over the same batches is, within the same tolerance, float64's lengthened by the
  candidate's own noise.
- Its own error over them is no larger than the baseline's, or within the tolerance of check 2
  alone.

Check 3 says of how many parameters that held.

Flips: a unit that falls on the other side of a ReLU's zero makes the gradients of the layers below
it a percent off in a small network, on that batch alone. So a parameter beyond its limit is
cleared under two conditions: it is at rounding on at least half of the batches, and on each batch
so is at least a quarter of all parameters. A wrong gradient is wrong on every batch. In half
precision no gradient is at rounding, and noise hides flips.

The tolerances were found on ResNet-50 (benchmarks/notes/parity.md). The rounding noise of check 3
was 0.030 at worst over four batches under O1, and below 0.001 over one under O0. A planted factor
is 1.1 and 1.01.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from gallery_lib.measure.comparison.deviation import ERROR_FACTOR, Deviation, check_of
from gallery_lib.measure.comparison.gradient_probe import relative_error
from gallery_lib.measure.comparison.result import Check

PROBE_BATCHES = 4
"""Number of first batches that are probed, and that are shown to be the same.

Half precision needs as many to average its noise out. In fp32 a batch tells flips from faults.
"""
GRADIENT_TOLERANCE = {"O0": 3e-2, "O1": 0.1}
ACROSS_PRECISIONS_GRADIENT_TOLERANCE = 0.5
"""Gradient tolerance where the baseline is fp32 and the candidate is not.

The baseline's error then says nothing about rounding.
"""
SCALE_TOLERANCE = {"O0": 4e-3, "O1": 5e-2}
NEGLIGIBLE = 1e-5
"""A gradient counts as zero below this fraction of the whole model's root mean square."""
_AT_ROUNDING = 1e-3
"""Relative error on a batch of a gradient that is right; in fp32 most are a hundredth of it."""
_RIGHT_ON_EACH_BATCH = 0.25
"""Part of the parameters that must be at rounding on a batch with flips."""


def parameters_to_check(exact: dict[str, Any]) -> list[str]:
    """Return the parameters whose exact gradient is not zero except for rounding."""
    mean_squares = {
        name: sum(v * v for v in first) / len(first)
        for name, (first, *_) in exact["samples"].items()
        if first
    }
    overall = sum(mean_squares.values()) / max(1, len(mean_squares))
    return [name for name, square in mean_squares.items() if square > NEGLIGIBLE**2 * overall]


def _error(probe: dict[str, Any], exact: dict[str, Any], name: str, batches: int = 1) -> float:
    """Return the relative error of a parameter's gradient against float64; inf without one.

    It is that of the first `batches` batches together, or of fewer where float64 has seen fewer.
    """
    if name not in probe["samples"]:
        return math.inf
    batches = min(batches, exact["batches"])
    return relative_error(
        *([v for sample in p["samples"][name][:batches] for v in sample] for p in (probe, exact))
    )


def _cleared(candidate: dict[str, Any], exact: dict[str, Any]) -> set[str]:
    """Return the parameters that some batches have flipped, and that other batches clear."""
    batches = range(min(candidate["batches"], exact["batches"]))
    right = {
        name: [
            relative_error(candidate["samples"][name][batch], exact["samples"][name][batch])
            <= _AT_ROUNDING
            for batch in batches
        ]
        for name in parameters_to_check(exact)
        if name in candidate["samples"]
    }
    on_each_batch = [sum(on[batch] for on in right.values()) for batch in batches]
    if min(on_each_batch) < _RIGHT_ON_EACH_BATCH * len(right):
        return set()
    return {name for name, on in right.items() if len(on) / 2 <= sum(on) < len(on)}


def check_gradients(
    baseline: dict[str, Any],
    candidate: dict[str, Any],
    exact: dict[str, Any],
    amp_level: str,
    *,
    same_precision: bool = True,
) -> Check:
    """Return check 2, over the gradients of the first batch."""
    tolerance = (
        GRADIENT_TOLERANCE[amp_level] if same_precision else ACROSS_PRECISIONS_GRADIENT_TOLERANCE
    )
    deviations = []
    for name in parameters_to_check(exact):
        error, baselines = (_error(probe, exact, name) for probe in (candidate, baseline))
        deviations.append(Deviation(error, ERROR_FACTOR * baselines + tolerance, name, baselines))
    return _check("gradients", deviations, candidate, exact)


def _check(
    name: str, deviations: Sequence[Deviation], candidate: dict[str, Any], exact: dict[str, Any]
) -> Check:
    """Return the check made of deviations by parameter, without those that flips explain."""
    cleared = set() if all(d.within for d in deviations) else _cleared(candidate, exact)
    kept = [d for d in deviations if d.within or d.where not in cleared]
    check = check_of(name, kept, of_parameters=True)
    note = (
        f"{check.where}; {len(deviations) - len(kept)} parameter(s) off on some batches, at "
        "rounding on others"
    )
    return dataclasses.replace(check, where=note) if len(kept) < len(deviations) else check


def _excess_length(probe: dict[str, Any], other: dict[str, Any], name: str, batches: int) -> float:
    """Return the length of a parameter's gradient over the other's, less one; inf for no number.

    The lengths are over the first `batches` batches.
    """
    length, others = (
        math.sqrt(sum(p["square_norms"].get(name, [])[:batches])) for p in (probe, other)
    )
    return length / others - 1.0 if others > 0 and length == length else math.inf


def _length_of_noise(baseline_error: float, error: float) -> float:
    """Return the candidate's length over the baseline's, less one, as far as noise explains it.

    Noise is at right angles to what is right. 0 where an error is not finite.
    """
    return (
        math.hypot(1.0, error) / math.hypot(1.0, baseline_error) - 1.0
        if math.isfinite(baseline_error + error)
        else 0.0
    )


def _allowed_error(baseline_error: float, amp_level: str) -> float:
    """Return the largest error at which a candidate's length is compared with float64.

    The error is that of the candidate's own gradient.
    """
    return max(
        GRADIENT_TOLERANCE[amp_level], baseline_error if math.isfinite(baseline_error) else 0.0
    )


def check_gradient_scale(
    baseline: dict[str, Any], candidate: dict[str, Any], exact: dict[str, Any], amp_level: str
) -> Check:
    """Return check 3, over the norms of gradients on several batches."""
    deviations = []
    tolerance, batches, against_float64 = SCALE_TOLERANCE[amp_level], candidate["batches"], 0
    for name in parameters_to_check(exact):
        error, baselines = (_error(probe, exact, name, batches) for probe in (candidate, baseline))
        excess = _excess_length(candidate, baseline, name, batches)
        noise = _length_of_noise(baselines, error)
        # More noise makes no gradient shorter.
        explained = abs(noise) if noise * excess > 0 else 0.0
        deviation = Deviation(abs(excess), tolerance + explained, name)
        may_be_right = exact["batches"] >= batches and error <= _allowed_error(baselines, amp_level)
        if deviation.value > deviation.limit and may_be_right:
            off = abs(
                (1.0 + _excess_length(candidate, exact, name, batches))
                / (1.0 + _length_of_noise(0.0, error))
                - 1.0
            )
            if off <= tolerance:
                deviation, against_float64 = Deviation(off, tolerance, name), against_float64 + 1
        deviations.append(deviation)
    check = _check("gradient scale", deviations, candidate, exact)
    note = (
        f"{check.where}; {against_float64} parameter(s) held against float64 "
        "instead of the baseline"
    )
    return dataclasses.replace(check, where=note) if against_float64 else check
