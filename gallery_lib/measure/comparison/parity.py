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

Losses of later steps are the subject of pair.py.

Small batches amplify rounding: a batch norm over four values does. So where a check fails, the
plain variant runs a second time, from weights that are moved by a rounding. If it
fails as well, the size is too small to judge.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from gallery_lib.measure.comparison.result import FINITE_LOSSES, SAME_START, Check, Parity
from gallery_lib.measure.comparison.worker import differences_of_start

Probe = dict[str, Any]  # result of `worker.run_probe`
Losses = Sequence[float | None]  # losses of the first steps; None is no finite number

# How many times as large as the baseline's error a candidate's may be, beside the tolerance.
ERROR_FACTOR = 3.0
LOSS_TOLERANCE = {"O0": 2e-3, "O1": 3e-2}
# How far the baseline itself may be from float64, relative to it.
BASELINE_FIRST_LOSS = {"O0": 0.01, "O1": 0.05}
BASELINE_LOSS = {"O0": 0.05, "O1": 0.25}
BASELINE_GRADIENT = {"O0": 0.1, "O1": 0.9}
_NO_LOSS = 1e-6  # a loss below this, of a single class, say, is nothing but rounding


class Deviation(NamedTuple):
    """A value, the limit that holds for it, and where it was met."""

    value: float
    limit: float
    where: str
    # The baseline's own value, where the limit is made of it.
    baselines: float | None = None

    @property
    def within(self) -> bool:
        """Return whether the value keeps its limit; NaN does not."""
        return self.value <= self.limit

    @property
    def share_of_limit(self) -> float:
        """Return the value over its limit, which is 0 where the exact value is."""
        if self.limit == 0:
            return 0.0 if self.value == 0 else math.inf
        return _no_nan(self.value / self.limit)


def _no_nan(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def relative_error(sample: list[float], exact: list[float]) -> float:
    """Return ‖sample − exact‖ / ‖exact‖; inf where it is not a number or the exact one is zero."""
    a, b = torch.tensor(sample, dtype=torch.float64), torch.tensor(exact, dtype=torch.float64)
    norm = float(b.norm())
    error = float((a - b).norm()) / norm if norm > 0 else math.inf
    return error if error == error else math.inf


def check_of(name: str, deviations: Sequence[Deviation]) -> Check:
    """Return the check made of deviations: that nearest to, or furthest over, its limit decides."""
    if not deviations:
        return Check(name, False, None, 0.0, "nothing to compare")
    worst = max(deviations, key=lambda deviation: deviation.share_of_limit)
    passed, values = all(d.within for d in deviations), (worst.value, worst.limit, worst.baselines)
    value, limit, baselines = map(_finite, values)
    return Check(name, passed, value, limit, worst.where, baselines)


def check_start(baseline: Probe, candidate: Probe, exact: Probe) -> Check:
    """Return check 0; the value is the number of things that differ."""
    # Also baseline and candidate, since the reference may have seen fewer batches.
    pairs = ((exact, baseline), (exact, candidate), (baseline, candidate))
    found = [difference for pair in pairs for difference in differences_of_start(*pair)]
    where = ", ".join(dict.fromkeys(found)) or "weights and batches"
    return Check(SAME_START, not found, len(found), 0.0, where)


def check_finite(diverged: Mapping[str, dict[str, Any] | None]) -> Check:
    """Return the check for finite losses; the value is the number of variants that diverged."""
    places = [
        f"{name} from step {place['step']} on rank {place['rank']} on"
        for name, place in diverged.items()
        if place is not None
    ]
    where = "; ".join(places) or "all steps of both"
    return Check(FINITE_LOSSES, not places, len(places), 0.0, where)


def check_baseline(
    losses: Losses, exact_losses: Losses, probe: Probe, exact: Probe, amp_level: str
) -> Check:
    """Return the check of the baseline, at `amp_level`, against float64."""
    deviations = []
    pairs = zip(map(_number, losses), map(_number, exact_losses), strict=False)
    for step, (b, e) in enumerate(pairs, 1):
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


def check_losses(baseline: Losses, candidate: Losses, exact: Losses, amp_level: str) -> Check:
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
    losses: tuple[Losses, Losses, Losses],
    probes: tuple[Probe, Probe, Probe],
    amp_level: str,
    *,
    same_precision: bool = True,
    diverged: Mapping[str, dict[str, Any] | None] | None = None,
) -> Parity:
    """Run all checks and return their parity.

    Losses of the first steps and gradient probes are those of baseline, candidate and float64. The
    level is the candidate's; without `same_precision` the baseline is in fp32. `diverged` says
    where each of the two diverged, None where it did not.
    """
    baselines_level = amp_level if same_precision else "O0"
    checks = [
        check_finite(diverged or {}),
        check_baseline(losses[0], losses[2], probes[0], probes[2], baselines_level),
        check_start(*probes),
        check_losses(*losses, amp_level),
        check_gradients(*probes, amp_level, same_precision=same_precision),
        check_gradient_scale(*probes, amp_level),
    ]
    return Parity(all(check.passed for check in checks), checks)


def rounding_explains(
    losses: tuple[Losses, Losses, Losses], probes: tuple[Probe, Probe, Probe], amp_level: str
) -> bool:
    """Return whether a second plain run is no nearer to the first than these checks ask.

    Losses and probes are those of the baseline, its second run, and float64.
    """
    checks = [
        check_baseline(losses[1], losses[0], probes[1], probes[0], amp_level),
        check_losses(*losses, amp_level),
        check_gradients(*probes, amp_level),
        check_gradient_scale(*probes, amp_level),
    ]
    return not all(check.passed for check in checks)


# --------------------------------------------------------------------------------------------------
# Parity of gradients: does the candidate's backward pass compute what the baseline's does?
#
# Checks 2 and 3, per parameter, on the gradients that the probe kept. Parameters
# whose gradient is zero except for rounding (a bias before batch norm) are left out.
#
# Check 2 looks at the first batch. Check 3 sees what it cannot: under bfloat16 the gradients of a
# deep network are a fifth noise, which adds its square to the squared length. The two may have
# different amounts of noise, which check 2 has found to be small enough, and which is measured on
# the batches that the lengths come from. Then the one with more may be longer by what that
# explains: hardly for a fifth, and by 0.20 for 0.5 against 0.9. A factor of 1.1 is seen in a
# gradient that is up to nine tenths noise.
#
# It may be the baseline that is off. So a candidate is right, whatever the baseline is, where its
# norm over the same batches is, within the same tolerance, float64's lengthened by the candidate's
# own noise, and its own error over them is no larger than the baseline's, or within the tolerance
# of check 2 alone. Check 3 says of how many parameters that held.
#
# Flips: a unit that falls on the other side of a ReLU's zero makes the gradients of the layers
# below it a percent off in a small network, on that batch alone. So a parameter beyond its limit
# is cleared under two conditions: it is at rounding on at least half of the batches, and on each
# batch so is at least a quarter of all parameters. A wrong gradient is wrong on every batch. In
# half precision no gradient is at rounding, and noise hides flips.
#
# The tolerances were found on ResNet-50 (benchmarks/notes/parity.md). The rounding noise of check
# 3 was 0.030 at worst over four batches under O1, and below 0.001 over one under O0. A planted
# factor is 1.1 and 1.01.


GRADIENT_TOLERANCE = {"O0": 3e-2, "O1": 0.1}
# Where the baseline is fp32 and the candidate is not, its error says nothing about rounding.
ACROSS_PRECISIONS_GRADIENT_TOLERANCE = 0.5
SCALE_TOLERANCE = {"O0": 4e-3, "O1": 5e-2}
# A gradient counts as zero below this fraction of the whole model's root mean square.
NEGLIGIBLE = 1e-5
_AT_ROUNDING = 1e-3  # error on a batch of a right gradient; in fp32 most have a hundredth of it
_RIGHT_ON_EACH_BATCH = 0.25  # part of the parameters that must be at rounding despite flips


def parameters_to_check(exact: Probe) -> list[str]:
    """Return the parameters whose exact gradient is not zero except for rounding."""
    mean_squares = {
        name: sum(v * v for v in first) / len(first)
        for name, (first, *_) in exact["samples"].items()
        if first
    }
    overall = sum(mean_squares.values()) / max(1, len(mean_squares))
    return [name for name, square in mean_squares.items() if square > NEGLIGIBLE**2 * overall]


def _error(probe: Probe, exact: Probe, name: str, batches: int = 1) -> float:
    """Return the relative error of a parameter's gradient against float64; inf without one.

    It is that of the first `batches` batches together, or of fewer where float64 has seen fewer.
    """
    if name not in probe["samples"]:
        return math.inf
    batches = min(batches, exact["batches"])
    return relative_error(
        *([v for sample in p["samples"][name][:batches] for v in sample] for p in (probe, exact))
    )


def _cleared(candidate: Probe, exact: Probe) -> set[str]:
    """Return the parameters that some batches have flipped, and that other batches clear."""
    batches = range(min(candidate["batches"], exact["batches"]))
    ours, right = candidate["samples"], exact["samples"]
    at_rounding = {
        name: [relative_error(ours[name][b], right[name][b]) <= _AT_ROUNDING for b in batches]
        for name in parameters_to_check(exact)
        if name in ours
    }
    on_each_batch = [sum(on[batch] for on in at_rounding.values()) for batch in batches]
    if min(on_each_batch) < _RIGHT_ON_EACH_BATCH * len(at_rounding):
        return set()
    return {name for name, on in at_rounding.items() if len(on) / 2 <= sum(on) < len(on)}


def check_gradients(
    baseline: Probe, candidate: Probe, exact: Probe, amp_level: str, *, same_precision: bool = True
) -> Check:
    """Return check 2, over the gradients of the first batch."""
    own = GRADIENT_TOLERANCE[amp_level]
    tolerance = own if same_precision else ACROSS_PRECISIONS_GRADIENT_TOLERANCE
    deviations = []
    for name in parameters_to_check(exact):
        error, baselines = (_error(probe, exact, name) for probe in (candidate, baseline))
        deviations.append(Deviation(error, ERROR_FACTOR * baselines + tolerance, name, baselines))
    return _check("gradients", deviations, candidate, exact)


def _check(name: str, deviations: Sequence[Deviation], candidate: Probe, exact: Probe) -> Check:
    """Return the check made of deviations by parameter, without those that flips explain."""
    cleared = set() if all(d.within for d in deviations) else _cleared(candidate, exact)
    kept = [d for d in deviations if d.within or d.where not in cleared]
    off = len(deviations) - len(kept)
    note = f"{off} parameter(s) off on some batches, at rounding on others" if off else ""
    return _noted(check_of(name, kept), note)


def _noted(check: Check, note: str) -> Check:
    return dataclasses.replace(check, where=f"{check.where}; {note}") if note else check


def _excess_length(probe: Probe, other: Probe, name: str, batches: int) -> float:
    """Return the length of a parameter's gradient over the other's, less one; inf for no number.

    The lengths are over the first `batches` batches.
    """
    length, others = (
        math.sqrt(sum(p["square_norms"].get(name, [])[:batches])) for p in (probe, other)
    )
    return _no_nan(length / others - 1.0) if others > 0 else math.inf


def _length_of_noise(baseline_error: float, error: float) -> float:
    """Return the candidate's length over the baseline's, less one, as far as noise explains it.

    Noise is at right angles to what is right. 0 where an error is not finite.
    """
    if not math.isfinite(baseline_error + error):
        return 0.0
    return math.hypot(1.0, error) / math.hypot(1.0, baseline_error) - 1.0


def check_gradient_scale(baseline: Probe, candidate: Probe, exact: Probe, amp_level: str) -> Check:
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
        # Float64 decides where it has seen these batches, and the candidate errs no more.
        allowed = max(GRADIENT_TOLERANCE[amp_level], baselines if math.isfinite(baselines) else 0.0)
        may_be_right = exact["batches"] >= batches and error <= allowed
        if deviation.value > deviation.limit and may_be_right:
            length = 1.0 + _excess_length(candidate, exact, name, batches)
            off = abs(length / (1.0 + _length_of_noise(0.0, error)) - 1.0)
            if off <= tolerance:
                deviation, against_float64 = Deviation(off, tolerance, name), against_float64 + 1
        deviations.append(deviation)
    check = _check("gradient scale", deviations, candidate, exact)
    note = f"{against_float64} parameter(s) held against float64 instead of the baseline"
    return _noted(check, note if against_float64 else "")
