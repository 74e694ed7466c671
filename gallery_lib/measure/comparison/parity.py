"""Parity check: does the candidate compute the same training as the baseline?

It is made before any speed-up is printed. Both start from the same weights and see the same
batches. A third run does the same in float64. The checks:

- *Finite losses*: neither has diverged, at any step of the comparison.
- *Baseline*: it is itself near float64. The limits for the candidate are made of the baseline's
  error, so a wrong baseline, or a wrong reference, would allow anything. Compared with float64 are
  its first loss, which differs by rounding alone, its later ones, and all gradients of the first
  batch together.

0. *Same start*: initial weights and first batches of all three are the same, bit by bit.
1. *Losses* of the first steps: |candidate − exact| ≤ 3 × |baseline − exact| + tolerance × |exact|.
   The baseline's error is its largest so far (errors of a training run only grow).
2. *Gradients* on the first batch, per parameter: the candidate's relative error against float64 is
   at most 3 × the baseline's + tolerance. Rounding alone is allowed to differ, by as much as
   precision explains.
3. *Gradient scale*, per parameter: the norm over several batches, candidate over baseline, is 1
   within a tolerance that rounding noise does not reach and a wrong factor does.

Checks 2 and 3 are in gradient_parity.py. Losses of later steps are the subject of pair.py.

Small batches amplify rounding: a batch norm over four values does. So where a check fails, the
plain variant runs a second time, from weights that are moved by a rounding (second_run.py). If it
fails as well, the size is too small to judge.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gallery_lib.measure.comparison.deviation import ERROR_FACTOR, Deviation, check_of
from gallery_lib.measure.comparison.gradient_parity import (
    check_gradient_scale,
    check_gradients,
    parameters_to_check,
)
from gallery_lib.measure.comparison.gradient_probe import differences_of_start, relative_error
from gallery_lib.measure.comparison.result import FINITE_LOSSES, SAME_START, Check, Parity

LOSS_TOLERANCE = {"O0": 2e-3, "O1": 3e-2}
BASELINE_FIRST_LOSS = {"O0": 0.01, "O1": 0.05}
BASELINE_LOSS = {"O0": 0.05, "O1": 0.25}
BASELINE_GRADIENT = {"O0": 0.1, "O1": 0.9}
"""How far the baseline itself may be from float64, relative to it.

The three limits are for the first loss, later ones, and the gradients together.
"""
_NO_LOSS = 1e-6
"""A loss below this, of a single class, say, is nothing but rounding."""


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def check_start(
    baseline: dict[str, Any], candidate: dict[str, Any], exact: dict[str, Any]
) -> Check:
    """Return check 0; the value is the number of things that differ."""
    # Also baseline and candidate, since the reference may have seen fewer batches.
    pairs = ((exact, baseline), (exact, candidate), (baseline, candidate))
    differences = [
        difference for one, other in pairs for difference in differences_of_start(one, other)
    ]
    return Check(
        SAME_START,
        not differences,
        len(differences),
        0.0,
        ", ".join(dict.fromkeys(differences)) or "weights and batches",
    )


def check_finite(diverged: Mapping[str, dict[str, Any] | None]) -> Check:
    """Return the check for finite losses; the value is the number of variants that diverged."""
    places = {name: place for name, place in diverged.items() if place is not None}
    where = "; ".join(
        f"{name} from step {place['step']} on rank {place['rank']} on: {place['what']}"
        for name, place in places.items()
    )
    return Check(FINITE_LOSSES, not places, len(places), 0.0, where or "all steps of both")


def check_baseline(
    losses: Sequence[float | None],
    exact_losses: Sequence[float | None],
    probe: dict[str, Any],
    exact: dict[str, Any],
    amp_level: str,
) -> Check:
    """Return the check of the baseline, at `amp_level`, against float64."""
    deviations = []
    for step, (b, e) in enumerate(
        zip(map(_number, losses), map(_number, exact_losses), strict=False), 1
    ):
        tolerance = (BASELINE_FIRST_LOSS if step == 1 else BASELINE_LOSS)[amp_level]
        limit = tolerance * abs(e) + _NO_LOSS
        deviations.append(Deviation(abs(b - e), limit, f"the baseline's loss at step {step}"))
    names = parameters_to_check(exact)
    if names and all(name in probe["samples"] for name in names):
        gradients, exact_gradients = (
            [value for name in names for value in samples[name][0]]
            for samples in (probe["samples"], exact["samples"])
        )
        error = relative_error(gradients, exact_gradients)
        limit = BASELINE_GRADIENT[amp_level]
        deviations.append(Deviation(error, limit, "the baseline's gradients together"))
    return check_of("baseline", deviations)


def check_losses(
    baseline: list[float | None],
    candidate: list[float | None],
    exact: list[float | None],
    amp_level: str,
) -> Check:
    """Return check 1, over the steps that all three have."""
    deviations = []
    largest = 0.0
    for step, losses in enumerate(zip(baseline, candidate, exact, strict=False), 1):
        b, c, e = map(_number, losses)
        largest = max(largest, abs(b - e))
        limit = ERROR_FACTOR * largest + LOSS_TOLERANCE[amp_level] * abs(e)
        deviations.append(Deviation(abs(c - e), limit, f"step {step}", largest))
    return check_of("losses", deviations)


def judge(
    losses: tuple[list[float | None], list[float | None], list[float | None]],
    probes: tuple[dict[str, Any], dict[str, Any], dict[str, Any]],
    amp_level: str,
    *,
    same_precision: bool = True,
    diverged: Mapping[str, dict[str, Any] | None] | None = None,
) -> Parity:
    """Run all checks and return their parity.

    Args:
        losses: losses of the first steps: (baseline, candidate, exact).
        probes: gradient probes: (baseline, candidate, exact).
        amp_level: the candidate's.
        same_precision: whether the baseline has that level, too; otherwise it is fp32.
        diverged: where each of the two diverged, None where it did not.
    """
    checks = [
        check_finite(diverged or {}),
        check_baseline(
            losses[0], losses[2], probes[0], probes[2], amp_level if same_precision else "O0"
        ),
        check_start(*probes),
        check_losses(*losses, amp_level),
        check_gradients(*probes, amp_level, same_precision=same_precision),
        check_gradient_scale(*probes, amp_level),
    ]
    return Parity(all(check.passed for check in checks), checks)


def rounding_explains(
    losses: tuple[list[float | None], list[float | None], list[float | None]],
    probes: tuple[dict[str, Any], dict[str, Any], dict[str, Any]],
    amp_level: str,
) -> bool:
    """Return whether a second plain run is no nearer to the first than these checks ask.

    Args:
        losses: losses of the first steps: (baseline, its second run, exact).
        probes: gradient probes of the same.
        amp_level: the baseline's.
    """
    checks = [
        check_baseline(losses[1], losses[0], probes[1], probes[0], amp_level),
        check_losses(*losses, amp_level),
        check_gradients(*probes, amp_level),
        check_gradient_scale(*probes, amp_level),
    ]
    return not all(check.passed for check in checks)
