"""Whether two runs of a script are the same training: `compare(plain, again, other)`.

The losses that the script differentiates, the length of its gradients and of each optimizer's step
are compared over the first cycles. The first cycle is eager in both forms. So the second one begins
with equal weights, and a wrong gradient, buffer or step shows there: of the first two, samples of
every tensor are compared. From the third on, rounding has gone its own way in each.

What is allowed is rounding: the tolerances of `measure.comparison.parity`, and where they are not
enough, what rounding does to this script. That is measured: in a run of the plain form weights are
moved by a rounding after the first cycle. Where the judged form rounds more than that in the second
cycle, it may differ by as much more later. A script whose plain form does not repeat itself has no
parity.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gallery_lib.measure.comparison.parity import (
    ERROR_FACTOR,
    GRADIENT_TOLERANCE,
    LOSS_TOLERANCE,
    SCALE_TOLERANCE,
)
from gallery_lib.trial.result import Parity
from gallery_lib.trial.run import Reports

REPEATS = 1e-3
"""Relative difference of losses up to which two plain runs are the same one."""
_LARGEST_SHARE = 0.2
"""Of a value, that rounding may explain: beyond it nothing could be told from a fault."""
_ALIKE = 2
"""Cycles that begin with equal weights in both forms."""
_NO_GRADIENT = 1e-5
"""Norm of a gradient, as a part of the largest one's, that is nothing but rounding."""


@dataclass(frozen=True)
class _Difference:
    value: float
    what: str
    cycle: int
    tolerances: dict[str, float]
    """By precision, as options name it: differences that need no explanation."""

    def __str__(self) -> str:
        return f"{self.what} in cycle {self.cycle}"


def repeats(plain: Reports, again: Reports) -> Parity:
    """Return whether the plain form repeats itself, from the same seeds."""
    if plain.newest["hidden"] or not all(cycle.losses for cycle in again.cycles):
        return Parity(
            False,
            "its losses are hidden: the script differentiates something else than scalars, or not "
            "by backward()",
        )
    for number, (one, other) in enumerate(zip(plain.cycles, again.cycles, strict=False), 1):
        for loss, same in zip(one.losses, other.losses, strict=False):
            if not math.isfinite(loss):
                return Parity(False, f"its loss is {loss} in cycle {number}", None)
            difference = _relative(loss, same)
            if not difference <= REPEATS:
                return Parity(
                    False,
                    "it is not reproducible: two plain runs with the same seeds have losses of "
                    f"{loss:.6g} and {same:.6g} in cycle {number}",
                    difference if math.isfinite(difference) else None,
                    REPEATS,
                )
    return Parity(True, "two plain runs are the same")


def compare(plain: Reports, again: Reports, other: Reports, moved: Callable[[], Reports]) -> Parity:
    """Return whether `other` is the training of `plain`.

    Args:
        plain: the plain form.
        again: the plain form a second time; its distance from the first is explained.
        other: the form that is judged.
        moved: runs the plain form with weights moved by a rounding; called only where needed.
    """
    level = "O1" if any(check["half"] for check in plain.checks) else "O0"
    found = list(_differences(plain, other))
    if not all(math.isfinite(one.value) for one in found):
        one = next(one for one in found if not math.isfinite(one.value))
        return Parity(False, f"not the same training: {one} is not finite, or missing", None)
    same = Parity(
        True,
        "same losses, gradients and weights within rounding",
        max(one.value for one in found),
    )
    if all(one.value <= one.tolerances[level] for one in found):
        return same
    by_rounding: dict[str, float] = {}
    by_cycle: dict[int, float] = {}
    for each in (*_differences(plain, again), *_differences(plain, moved())):
        by_rounding[str(each)] = max(each.value, by_rounding.get(str(each), 0.0))
        by_cycle[each.cycle] = max(each.value, by_cycle.get(each.cycle, 0.0))
    size = _size_of_rounding(found, by_rounding)
    judged = 0
    for one in found:
        explained = by_rounding.get(str(one), 0.0)
        if one.cycle > _ALIKE:
            # A value may be near by chance, and one run be a cycle ahead of the other.
            so_far = [v for c, v in by_cycle.items() if _ALIKE < c <= one.cycle + 1]
            explained = size * max(so_far, default=0.0)
        if explained > _LARGEST_SHARE:
            continue  # nothing but rounding: a gradient that is zero in theory
        judged += 1
        limit = one.tolerances[level] + ERROR_FACTOR * explained
        if one.value > limit:
            return Parity(
                False,
                f"not the same training: {one} differs by {one.value:.2%}, where rounding "
                f"explains {limit:.2%}",
                one.value,
                limit,
            )
    if judged < len(found) / 2:
        return Parity(False, "too noisy to judge: rounding alone changes most values by a fifth")
    return same


def _size_of_rounding(found: Sequence[_Difference], by_rounding: Mapping[str, float]) -> float:
    """Return how large the rounding of the judged form is, over that of the moved weights.

    Both are seen in the gradients of the last cycle that begins with equal weights, where they are
    held to the tolerances. From there on a training makes them larger alike.
    """
    ratios = [
        one.value / by_rounding[str(one)]
        for one in found
        if one.cycle == _ALIKE
        and one.tolerances is GRADIENT_TOLERANCE
        and by_rounding.get(str(one), 0.0) > 0
    ]
    return max(1.0, statistics.median(ratios)) if ratios else 1.0


def _differences(one: Reports, other: Reports) -> Iterator[_Difference]:
    """Yield relative differences in the order in which a training meets them."""
    for number, (check, same) in enumerate(zip(one.checks, other.checks, strict=False)):
        losses = one.cycles[number].losses, other.cycles[number].losses
        cycle = number + 1
        if len(losses[0]) != len(losses[1]):
            yield _Difference(math.inf, "the number of losses", cycle, LOSS_TOLERANCE)
        for pair in zip(*losses, strict=False):
            yield _Difference(_relative(*pair), "the loss", cycle, LOSS_TOLERANCE)
        lengths = [_length(each["gradients"]) for each in (check, same)]
        yield _Difference(_relative(*lengths), "the length of the gradient", cycle, SCALE_TOLERANCE)
        if cycle <= _ALIKE:
            for kind in ("gradients", "buffers"):
                yield from _of_tensors(check[kind], same[kind], kind.removesuffix("s"), cycle)
        if number:
            yield from _of_steps(one.checks, other.checks, number)


def _length(tensors: dict[str, Any]) -> float:
    return math.hypot(*(values[0] for values in tensors.values()))


def _of_tensors(
    one: dict[str, Any], other: dict[str, Any], kind: str, cycle: int
) -> Iterator[_Difference]:
    largest = max((values[0] for values in one.values()), default=0.0)
    for name, values in one.items():
        what = f"{kind} {name}"
        if name not in other:
            yield _Difference(math.inf, what, cycle, SCALE_TOLERANCE)
        elif not max(values[0], other[name][0]) <= _NO_GRADIENT * largest:  # NaN counts
            scale = _relative(values[0], other[name][0])
            yield _Difference(scale, f"the norm of {what}", cycle, SCALE_TOLERANCE)
            yield from _apart(values[1:], other[name][1:], what, cycle)
    if missing := other.keys() - one.keys():
        yield _Difference(math.inf, f"{kind} {min(missing)}", cycle, SCALE_TOLERANCE)


def _apart(
    one: Sequence[float], other: Sequence[float], what: str, cycle: int
) -> Iterator[_Difference]:
    """Yield how far two vectors are apart, over the first one's length."""
    if size := math.hypot(*one):
        apart = math.dist(one, other) if len(one) == len(other) else math.inf
        apart = apart if math.isfinite(apart) else math.inf
        yield _Difference(apart / size, what, cycle, GRADIENT_TOLERANCE)


def _of_steps(
    one: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]], number: int
) -> Iterator[_Difference]:
    """Yield how far the steps of a cycle are apart: where weights went, and how far."""
    steps = [_moves(checks, number, _without_gradient(one[number])) for checks in (one, other)]
    what, cycle = "the step of the optimizer", number + 1
    lengths = [math.hypot(*step) for step in steps]
    yield _Difference(_relative(*lengths), f"the length of {what}", cycle, SCALE_TOLERANCE)
    if cycle <= _ALIKE:
        yield from _apart(steps[0], steps[1], what, cycle)


def _without_gradient(check: dict[str, Any]) -> set[str]:
    """Return the weights whose gradient is nothing but rounding, such as a bias before a norm.

    An optimizer that divides by a gradient's size makes whole steps of it.
    """
    gradients = check["gradients"]
    limit = _NO_GRADIENT * max((values[0] for values in gradients.values()), default=0.0)
    return {
        name
        for name in check["weights"]
        if (own := [v[0] for g, v in gradients.items() if g.startswith(f"of {name} in step ")])
        and max(own) <= limit
    }


def _moves(checks: Sequence[dict[str, Any]], number: int, left_out: set[str]) -> list[float]:
    now, before = checks[number]["weights"], checks[number - 1]["weights"]
    return [
        a - b
        for name in now
        if name in before and name not in left_out
        for a, b in zip(now[name][1:], before[name][1:], strict=False)
    ]


def _relative(one: float, other: float) -> float:
    if one == other:
        return 0.0
    finite = math.isfinite(one) and math.isfinite(other)
    return abs(one - other) / max(abs(one), abs(other)) if finite else math.inf
