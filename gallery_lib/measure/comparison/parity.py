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

Check 3 sees what check 2 cannot: under bfloat16 the gradients of a deep network are a fifth noise,
which adds its square to the squared length. The two may have different amounts of noise, which
check 2 has found to be small enough. Then the one with more may be longer by what that explains:
hardly for a fifth, and by 0.20 for 0.5 against 0.9. A factor of 1.1 is seen in a gradient that is
up to nine tenths noise.

It may be the baseline that is off. So a candidate is right, whatever the baseline is, under two
conditions:

- Its norm over the same batches is, within the same tolerance, float64's lengthened by the
  candidate's own noise.
- Its own error on the first batch is no larger than the baseline's, or within the tolerance of
  check 2 alone.

The check says of how many parameters that held.

The tolerances were found on ResNet-50 (benchmarks/notes/parity.md). The rounding noise of check 3
was 0.030 at worst over four batches under O1, and below 0.001 over one under O0. A planted factor
is 1.1 and 1.01. Parameters whose gradient is zero except for rounding (a bias before batch norm)
are left out of checks 2 and 3.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gallery_lib.measure.comparison.gradient_probe import differences_of_start, relative_error
from gallery_lib.measure.comparison.result import Check, Parity

PROBE_BATCHES = {"O0": 2, "O1": 4}
"""Number of batches for the norms of check 3, by amp level.

Half precision needs more batches to average its noise out.
"""
LOSS_TOLERANCE = {"O0": 2e-3, "O1": 3e-2}
GRADIENT_TOLERANCE = {"O0": 3e-2, "O1": 0.1}
ACROSS_PRECISIONS_GRADIENT_TOLERANCE = 0.5
"""Gradient tolerance where the baseline is fp32 and the candidate is not.

The baseline's error then says nothing about rounding.
"""
SCALE_TOLERANCE = {"O0": 4e-3, "O1": 5e-2}
BASELINE_FIRST_LOSS = {"O0": 0.01, "O1": 0.05}
BASELINE_LOSS = {"O0": 0.05, "O1": 0.25}
BASELINE_GRADIENT = {"O0": 0.1, "O1": 0.9}
"""How far the baseline itself may be from float64, relative to it.

The three limits are for the first loss, later ones, and the gradients together.
"""
_NO_LOSS = 1e-6
"""A loss below this, of a single class, say, is nothing but rounding."""
ERROR_FACTOR = 3.0
NEGLIGIBLE = 1e-5
"""A gradient counts as zero below this fraction of the whole model's root mean square."""


def probe_batches(amp_levels: Iterable[str]) -> int:
    """Return the number of batches that a comparison of runs at these levels needs."""
    return max(PROBE_BATCHES[level] for level in amp_levels)


def _worst(name: str, rows: list[tuple[float, float, str, float | None]]) -> Check:
    """Return the check made of rows: the row nearest to, or furthest over, its limit decides.

    A row is (value, limit, where, the baseline's own value).
    """
    if not rows:
        return Check(name, False, math.inf, 0.0, "nothing to compare")
    value, limit, where, own = max(rows, key=lambda row: _share_of_limit(row[0], row[1]))
    return Check(
        name,
        all(row[0] <= row[1] for row in rows),
        value if value == value else math.inf,
        limit,
        where,
        own,
    )


def _share_of_limit(value: float, limit: float) -> float:
    """Return `value` over `limit`.

    The limit is 0 where the exact value is: the loss over a single class, say.
    """
    if limit == 0:
        return 0.0 if value == 0 else math.inf
    return value / limit if value == value else math.inf


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def check_start(
    baseline: dict[str, Any], candidate: dict[str, Any], exact: dict[str, Any]
) -> Check:
    """Return check 0; the value is the number of things that differ."""
    # Also baseline and candidate, since the reference may have seen fewer batches.
    pairs = ((exact, baseline), (exact, candidate), (baseline, candidate))
    found = [difference for one, other in pairs for difference in differences_of_start(one, other)]
    return Check(
        "same start",
        not found,
        len(found),
        0.0,
        ", ".join(dict.fromkeys(found)) or "weights and batches",
    )


def check_finite(diverged: Mapping[str, dict[str, Any] | None]) -> Check:
    """Return the check for finite losses; the value is the number of variants that diverged."""
    found = {name: at for name, at in diverged.items() if at is not None}
    where = "; ".join(
        f"{name} from step {at['step']} on rank {at['rank']} on: {at['what']}"
        for name, at in found.items()
    )
    return Check("finite losses", not found, len(found), 0.0, where or "all steps of both")


def check_baseline(
    losses: Sequence[float | None],
    exact_losses: Sequence[float | None],
    probe: dict[str, Any],
    exact: dict[str, Any],
    amp_level: str,
) -> Check:
    """Return the check of the baseline, at `amp_level`, against float64."""
    rows: list[tuple[float, float, str, float | None]] = []
    for step, (b, e) in enumerate(
        zip(map(_number, losses), map(_number, exact_losses), strict=False), 1
    ):
        limit = BASELINE_FIRST_LOSS if step == 1 else BASELINE_LOSS
        rows.append(
            (
                abs(b - e),
                limit[amp_level] * abs(e) + _NO_LOSS,
                f"the baseline's loss at step {step}",
                None,
            )
        )
    names = _counted(exact)
    if names and all(name in probe["samples"] for name in names):
        mine, right = (
            [value for name in names for value in each["samples"][name]] for each in (probe, exact)
        )
        rows.append(
            (
                relative_error(mine, right),
                BASELINE_GRADIENT[amp_level],
                "the baseline's gradients together",
                None,
            )
        )
    return _worst("baseline", rows)


def check_losses(
    baseline: list[float | None],
    candidate: list[float | None],
    exact: list[float | None],
    amp_level: str,
) -> Check:
    """Return check 1, over the steps that all three have."""
    rows: list[tuple[float, float, str, float | None]] = []
    largest = 0.0
    for step, (b, c, e) in enumerate(zip(baseline, candidate, exact, strict=False), 1):
        b, c, e = _number(b), _number(c), _number(e)
        largest = max(largest, abs(b - e))
        rows.append(
            (
                abs(c - e),
                ERROR_FACTOR * largest + LOSS_TOLERANCE[amp_level] * abs(e),
                f"step {step}",
                largest,
            )
        )
    return _worst("losses", rows)


def _counted(exact: dict[str, Any]) -> list[str]:
    """Return the parameters whose exact gradient is not zero except for rounding."""
    mean_squares = {
        name: sum(v * v for v in sample) / len(sample)
        for name, sample in exact["samples"].items()
        if sample
    }
    overall = sum(mean_squares.values()) / max(1, len(mean_squares))
    return [name for name, square in mean_squares.items() if square > NEGLIGIBLE**2 * overall]


def _own_error(probe: dict[str, Any], exact: dict[str, Any], name: str) -> float:
    """Return the relative error of a parameter's gradient against float64; inf without one."""
    return (
        relative_error(probe["samples"][name], exact["samples"][name])
        if name in probe["samples"]
        else math.inf
    )


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
    rows: list[tuple[float, float, str, float | None]] = []
    for name in _counted(exact):
        error, own = (_own_error(probe, exact, name) for probe in (candidate, baseline))
        rows.append((error, ERROR_FACTOR * own + tolerance, name, own))
    return _worst("gradients", rows)


def _deviation(probe: dict[str, Any], other: dict[str, Any], name: str, batches: int) -> float:
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


def _allowed(baseline_error: float, amp_level: str) -> float:
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
    rows: list[tuple[float, float, str, float | None]] = []
    tolerance, batches, against_float64 = SCALE_TOLERANCE[amp_level], candidate["batches"], 0
    for name in _counted(exact):
        error, own = (_own_error(probe, exact, name) for probe in (candidate, baseline))
        deviation = _deviation(candidate, baseline, name, batches)
        noise = _length_of_noise(own, error)
        # More noise makes no gradient shorter.
        explained = abs(noise) if noise * deviation > 0 else 0.0
        row = abs(deviation), tolerance + explained, name, None
        if row[0] > row[1] and exact["batches"] >= batches and error <= _allowed(own, amp_level):
            off = abs(
                (1.0 + _deviation(candidate, exact, name, batches))
                / (1.0 + _length_of_noise(0.0, error))
                - 1.0
            )
            if off <= tolerance:
                row, against_float64 = (off, tolerance, name, None), against_float64 + 1
        rows.append(row)
    check = _worst("gradient scale", rows)
    note = (
        f"{check.where}; {against_float64} parameter(s) held against float64 "
        "instead of the baseline"
    )
    return dataclasses.replace(check, where=note) if against_float64 else check


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
