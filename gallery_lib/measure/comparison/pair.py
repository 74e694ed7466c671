"""Verdict on a baseline and a candidate that took turns: parity and speed-up."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from gallery_lib import memory, stats
from gallery_lib.measure.comparison import parity as checks
from gallery_lib.measure.comparison.interleaved import Measurement
from gallery_lib.measure.comparison.parity import ERROR_FACTOR, Deviation, check_of
from gallery_lib.measure.comparison.result import LATER_LOSSES, Check, Parity
from gallery_lib.measure.comparison.untimed import UntimedRuns
from gallery_lib.system.gpu import clocks_apart
from gallery_lib.system.machine_load import MachineLoad
from gallery_lib.train.results import Results

_LARGER = 4  # how many times as large a batch to take where one is too small to judge


def ratio(
    slower: Measurement, faster: Measurement, load: MachineLoad | None = None
) -> stats.Ratio | None:
    """Return how many times as fast `faster` is as `slower`, which took turns with it.

    The interval allows for the process spread, and for the load of the machine. None stands for a
    GPU that had other clocks for one than for the other.
    """
    if clocks_apart(slower.results.gpu, faster.results.gpu):
        return None
    spread = process_spread(slower.results, faster.results)
    return stats.ratio_of_medians(
        slower.rounds,
        faster.rounds,
        process_spread=math.hypot(spread, load.spread if load else 0.0),
    )


def parity(
    measured: Mapping[str, Measurement], one: str, other: str, steps: int, untimed: UntimedRuns
) -> Parity:
    """Return whether two variants that took turns compute the same training.

    What counts are the first `steps` losses and the probed gradients, then the losses of all steps.
    Where one of these fails, second runs tell whether rounding explains it. Half precision is
    compared with fp32, not the other way round.
    """
    if [measured[name].results.config["amp_level"] for name in (one, other)] == ["O1", "O0"]:
        one, other = other, one
    baseline, candidate = measured[one], measured[other]
    exact = untimed.reference(baseline.probe)
    levels = [variant.results.config["amp_level"] for variant in (baseline, candidate)]
    same_precision = levels[0] == levels[1]
    losses = [
        [loss for _, loss in variant.results.loss["curve"]] for variant in (baseline, candidate)
    ]
    found = checks.judge(
        (losses[0][:steps], losses[1][:steps], exact.losses),
        (baseline.probe, candidate.probe, exact.probe),
        levels[1],
        same_precision=same_precision,
        diverged={
            "the baseline": baseline.results.diverged_at,
            "the candidate": candidate.results.diverged_at,
        },
    )
    if found.of_rounding:
        second = untimed.again(one, 0)
        if checks.rounding_explains(
            (losses[0][:steps], list(second.losses[:steps]), exact.losses),
            (baseline.probe, second.probe, exact.probe),
            levels[0],
        ):
            batch_size = _LARGER * int(baseline.results.config["batch_size"])
            return dataclasses.replace(found, batch_to_take=batch_size)
    if not found.passed:
        return found
    later = check_curves(
        losses[0],
        losses[1],
        levels[1],
        lambda move: untimed.again(one, move).losses,
        lambda move: untimed.again(other, move).losses,
        same_precision=same_precision,
    )
    return Parity(later.passed, [*found.checks, later])


# --------------------------------------------------------------------------------------------------
# Spread in speed between processes that run the same code, which turns between two do not show.
#
# A process whose allocator gives memory back to the kernel, as glibc's does by default, pays a page
# fault for each page that it takes again. How many depends on what happens to lie on top of the
# heap: processes of the same code were up to 20 % apart, each for as long as it lived. A process
# that keeps its memory, or hardly needs any, has no such spread. `benchmarks/trust.py` measures
# both; benchmarks/notes/process-spread.md has the figures.


# Relative standard deviation of the step time over processes with hardly any page faults.
KEEPS_MEMORY = stats.LEAST_SPREAD
# Relative standard deviation of the step time over processes that give memory back.
GIVES_MEMORY_BACK = 0.05
FAULT_SECONDS = 2.5e-6  # 1.3 µs in a small network, 5 µs in ResNet-50: it also cools the caches
NOTICEABLE_PART = 0.01  # of a step: above it, page faults matter


def page_faults_part(results: Results) -> float:
    """Return roughly the part of a step that its page faults cost."""
    return results.page_faults * FAULT_SECONDS / results.step_seconds["p50"]


def process_spread(baseline: Results, candidate: Results) -> float:
    """Return the relative standard deviation of the ratio of step times over restarts of both.

    Page faults in one process are a risk for both: the next start of the other may have them. A
    process whose allocator keeps its memory does not run that risk.
    """
    faults_matter = max(page_faults_part(baseline), page_faults_part(candidate)) > NOTICEABLE_PART

    def gives_back(results: Results) -> bool:
        keeps = results.techniques.get("allocator", "").startswith(memory.KEEPS)
        return faults_matter and not keeps

    return spread_of(gives_back(baseline), gives_back(candidate))


def spread_of(*give_memory_back: bool) -> float:
    """Return the relative standard deviation of a ratio, by what each process does with memory."""
    # Independent relative errors of a ratio add up as the root of the sum of squares.
    return math.hypot(*(GIVES_MEMORY_BACK if gives else KEEPS_MEMORY for gives in give_memory_back))


# --------------------------------------------------------------------------------------------------
# Parity of whole loss curves: is the training still the same after the first steps?
#
# `parity` holds the first steps against float64. Here the losses of all steps of the candidate are
# held against the baseline's, step by step and as means of eight steps: rounding cancels out in a
# mean, and a small systematic fault does not. Two right runs part as well, since training
# amplifies rounding, often exponentially. How far depends on the model, so it is measured, and
# only where it must be:
#
# 1. A distance below a tolerance needs no explanation. The distance of nearly all runs in fp32 is
# a hundredth of it. 2. Otherwise the plain variant is trained a second time, from weights that are
# moved by a rounding (`untimed`). At each step, three times its largest distance so far from
# the first run is allowed, and the tolerance. 3. A unit that falls on the other side of a ReLU's
# zero makes a small network part by a percent, in one of many runs. So a candidate beyond the
# limit is trained a second time in the same way. A fault shows in both of its runs, such chance
# does not. 4. One second run may by chance stay near the first. So before a candidate is called
# another training, the plain variant is trained from three more moved weights, and the largest
# distance between any two of its runs counts.
#
# Each further run costs its steps and a start. Where precisions differ, those of steps 2 and 4 are
# the candidate's, whose rounding is the larger one.


Curve = Sequence[float | None]  # losses of all steps; None is no finite number

# Distance that needs no explanation, relative to the loss, by amp level of the candidate.
TOLERANCE = {"O0": 1e-3, "O1": 5e-3}
_WINDOW = 8  # steps of a mean
_WINDOW_TOLERANCE = 0.5  # tolerance for a mean, over that for a step
# Part of the largest loss that distances are relative to at least. A loss that training has made
# tiny may be any multiple of another.
_LEAST_LOSS = 0.01
_MORE_RUNS = 3  # further runs of the plain variant before a candidate is called another training
_STEPS_AHEAD = 2  # steps by which the second run may part later than the candidate does


def _differences(one: Curve, other: Curve) -> list[float]:
    return [math.nan if a is None or b is None else a - b for a, b in zip(one, other, strict=False)]


def _means(values: Sequence[float], width: int) -> list[float]:
    return [sum(values[end - width : end]) / width for end in range(width, len(values) + 1)]


def _deviations(
    candidate: Curve, baseline: Curve, amp_level: str, same: Sequence[Curve] = ()
) -> list[Deviation]:
    """Return the distance at each step and in each window, with its limit, in the order of steps.

    `same` holds runs of one training, whose distances from each other are explained.
    """
    sizes = [abs(loss or 0.0) for loss in baseline]
    least = _LEAST_LOSS * max(sizes, default=0.0)
    tolerances = [TOLERANCE[amp_level] * max(size, least) for size in sizes]
    deviations: list[tuple[int, Deviation]] = []
    for width, share in ((1, 1.0), (_WINDOW, _WINDOW_TOLERANCE)):
        distances = [
            [abs(mean) for mean in _means(_differences(*pair), width)]
            for pair in itertools.combinations(same, 2)
        ]
        largest = list(itertools.accumulate(map(max, zip(*distances, strict=False)), max))
        pairs = zip(
            _means(_differences(candidate, baseline), width),
            _means(tolerances, width),
            strict=False,
        )
        for place, (difference, tolerance) in enumerate(pairs):
            by_rounding = largest[min(place + _STEPS_AHEAD, len(largest) - 1)] if largest else None
            limit = share * tolerance + ERROR_FACTOR * (by_rounding or 0.0)
            step = place + width
            deviation = Deviation(abs(difference), limit, f"step {step}", by_rounding)
            deviations.append((step, deviation))
    return [deviation for _, deviation in sorted(deviations, key=lambda pair: pair[0])]


def check_curves(
    baseline: Curve,
    candidate: Curve,
    amp_level: str,
    again_plain: Callable[[int], Curve],
    again_candidate: Callable[[int], Curve],
    *,
    same_precision: bool = True,
) -> Check:
    """Return the check of all losses; where it fails, it names the step at which they part.

    The level is the candidate's; with `same_precision` the baseline's, too. `again_plain` trains
    the baseline again, from weights moved by the rounding of this number, and returns its losses;
    it is called where needed. `again_candidate` does the same for the candidate.
    """
    again = again_plain if same_precision else again_candidate

    def trials() -> Iterator[tuple[Curve, Sequence[Curve]]]:
        yield candidate, ()
        same = [baseline if same_precision else candidate, again(0)]
        yield candidate, same
        yield again_candidate(0), same
        same += [again(move) for move in range(1, 1 + _MORE_RUNS)]
        yield again_candidate(0), same
        yield candidate, same

    note = ""
    for curve, same in trials():
        deviations = _deviations(curve, baseline, amp_level, same)
        # The worst, or the first beyond its limit: there the trainings part.
        parted = next((deviation for deviation in deviations if not deviation.within), None)
        if parted is None:
            note = note if curve is not candidate else ""
            break
        if curve is candidate:
            note = f"; in one of two runs from {parted.where} on, by chance"
    check = check_of(LATER_LOSSES, [parted] if parted else deviations)
    return dataclasses.replace(check, where=check.where + ("" if parted else note))
