"""Whether two runs of a script are the same training: `compare(plain, again, other)`.

The losses that the script differentiates, and samples of gradients and weights at each step of an
optimizer, are compared over the first cycles. The first cycle is eager in both forms. So the
gradients of the second are computed from equal weights, and a wrong one shows there.

What is allowed is rounding. How far it carries a script is measured where it matters: a run of the
plain form in which weights are moved by a rounding after the first cycle. A script whose plain form
does not repeat itself has no parity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gallery_lib.measure.comparison.parity import ERROR_FACTOR
from gallery_lib.trial.result import Parity
from gallery_lib.trial.run import Reports

REPEATS = 1e-3
"""Relative difference of losses up to which two plain runs are the same one."""
TOLERANCE = {False: 1e-4, True: 3e-3}
"""Relative difference that needs no explanation, by whether a script has half precision."""
_LARGEST_SHARE = 0.2
"""Of a value, that rounding may explain: beyond it nothing could be told from a fault."""
_NO_GRADIENT = 1e-5
"""Norm of a gradient, as a part of the largest one's, that is nothing but rounding."""


@dataclass(frozen=True)
class _Difference:
    value: float
    what: str
    cycle: int

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
    half = any(check["half"] for check in plain.checks)
    tolerance = TOLERANCE[half]
    found = list(_differences(plain, other))
    if not all(math.isfinite(one.value) for one in found):
        one = next(one for one in found if not math.isfinite(one.value))
        return Parity(False, f"not the same training: {one} is not finite, or missing", None)
    worst = max(found, key=lambda one: one.value)
    if worst.value <= tolerance:
        return Parity(True, "same losses, gradients and weights within rounding", worst.value)
    by_rounding = [
        max(pair) for pair in zip(_values(plain, again), _values(plain, moved()), strict=False)
    ]
    reach: dict[str, float] = {}  # of rounding in a value so far: a training carries it on
    judged = 0
    for one, explained in zip(found, by_rounding, strict=False):
        reach[one.what] = max(explained, reach.get(one.what, 0.0))
        if reach[one.what] > _LARGEST_SHARE:
            continue  # nothing but rounding: a gradient that is zero in theory
        judged += 1
        limit = tolerance + ERROR_FACTOR * reach[one.what]
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
    return Parity(True, "same losses, gradients and weights within rounding", worst.value)


def _values(one: Reports, other: Reports) -> list[float]:
    return [difference.value for difference in _differences(one, other)]


def _differences(one: Reports, other: Reports) -> Iterator[_Difference]:
    """Yield relative differences in the order in which a training meets them."""
    for number, (check, same) in enumerate(zip(one.checks, other.checks, strict=False)):
        losses = one.cycles[number].losses, other.cycles[number].losses
        cycle = number + 1
        if len(losses[0]) != len(losses[1]):
            yield _Difference(math.inf, "the number of losses", cycle)
        for pair in zip(*losses, strict=False):
            yield _Difference(_relative(*pair), "the loss", cycle)
        for kind in ("gradients", "buffers"):
            yield from _of_tensors(check[kind], same[kind], kind.removesuffix("s"), cycle)
        if number:
            yield from _of_updates(one.checks, other.checks, number)


def _of_tensors(
    one: dict[str, Any], other: dict[str, Any], kind: str, cycle: int
) -> Iterator[_Difference]:
    largest = max((values[0] for values in one.values()), default=0.0)
    for name, values in one.items():
        what = f"{kind} {name}"
        if name not in other:
            yield _Difference(math.inf, what, cycle)
        elif values[0] > _NO_GRADIENT * largest:
            same, size = other[name], math.hypot(*values[1:])
            yield _Difference(_relative(values[0], same[0]), f"the norm of {what}", cycle)
            if size and len(values) == len(same):
                yield _Difference(math.dist(values[1:], same[1:]) / size, what, cycle)
    if missing := other.keys() - one.keys():
        yield _Difference(math.inf, f"{kind} {min(missing)}", cycle)


def _of_updates(
    one: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]], number: int
) -> Iterator[_Difference]:
    """Yield how far weights have moved apart in a cycle, over how far they have moved."""
    moves = [_moves(checks, number) for checks in (one, other)]
    size = math.hypot(*moves[0])
    if size > 0:
        apart = math.dist(*moves) if len(moves[0]) == len(moves[1]) else math.inf
        yield _Difference(apart / size, "the step of the optimizer", number + 1)


def _moves(checks: Sequence[dict[str, Any]], number: int) -> list[float]:
    now, before = checks[number]["weights"], checks[number - 1]["weights"]
    return [
        a - b
        for name in now
        if name in before
        for a, b in zip(now[name][1:], before[name][1:], strict=False)
    ]


def _relative(one: float, other: float) -> float:
    if one == other:
        return 0.0
    size = max(abs(one), abs(other))
    return abs(one - other) / size if math.isfinite(size) else math.inf
