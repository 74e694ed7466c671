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
    where: str


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
            difference = _relative(loss, same)
            if not difference <= REPEATS:
                return Parity(
                    False,
                    "it is not reproducible: two plain runs with the same seeds have losses of "
                    f"{loss:.6g} and {same:.6g} in cycle {number}",
                    difference,
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
        where = next(one.where for one in found if not math.isfinite(one.value))
        return Parity(False, f"not the same training: {where} is not finite, or missing", None)
    worst = max(found, key=lambda one: one.value)
    if worst.value <= tolerance:
        return Parity(True, "same losses, gradients and weights within rounding", worst.value)
    by_rounding = [
        max(pair) for pair in zip(_values(plain, again), _values(plain, moved()), strict=False)
    ]
    reach = 0.0  # of rounding so far: a training carries it on
    for one, explained in zip(found, by_rounding, strict=False):
        reach = max(reach, explained)
        limit = tolerance + min(ERROR_FACTOR * max(explained, 0.3 * reach), _LARGEST_SHARE)
        if one.value > limit:
            return Parity(
                False,
                f"not the same training: {one.where} differs by {one.value:.2%}, where rounding "
                f"explains {limit:.2%}",
                one.value,
                limit,
            )
    return Parity(True, "same losses, gradients and weights within rounding", worst.value)


def _values(one: Reports, other: Reports) -> list[float]:
    return [difference.value for difference in _differences(one, other)]


def _differences(one: Reports, other: Reports) -> Iterator[_Difference]:
    """Yield relative differences in the order in which a training meets them."""
    for number, (check, same) in enumerate(zip(one.checks, other.checks, strict=False)):
        losses = one.cycles[number].losses, other.cycles[number].losses
        place = f"in cycle {number + 1}"
        if len(losses[0]) != len(losses[1]):
            yield _Difference(math.inf, f"the number of losses {place}")
        for pair in zip(*losses, strict=False):
            yield _Difference(_relative(*pair), f"the loss {place}")
        yield from _of_tensors(check["gradients"], same["gradients"], "gradient", place)
        if number:
            yield from _of_updates(one.checks, other.checks, number, place)


def _of_tensors(
    one: dict[str, Any], other: dict[str, Any], what: str, place: str
) -> Iterator[_Difference]:
    largest = max((values[0] for values in one.values()), default=0.0)
    for name, values in one.items():
        if name not in other:
            yield _Difference(math.inf, f"{what} {name} {place}")
        elif values[0] > _NO_GRADIENT * largest:
            same, size = other[name], math.hypot(*values[1:])
            yield _Difference(_relative(values[0], same[0]), f"the norm of {what} {name} {place}")
            if size and len(values) == len(same):
                apart = math.dist(values[1:], same[1:]) / size
                yield _Difference(apart, f"{what} {name} {place}")
    if missing := other.keys() - one.keys():
        yield _Difference(math.inf, f"{what} {min(missing)} {place}")


def _of_updates(
    one: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]], number: int, place: str
) -> Iterator[_Difference]:
    """Yield how far weights have moved apart in a cycle, over how far they have moved."""
    moves = [_moves(checks, number) for checks in (one, other)]
    sizes = [math.hypot(*values) for values in moves]
    if sizes[0] > 0:
        apart = math.dist(*moves) if len(moves[0]) == len(moves[1]) else math.inf
        # What the first cycles had apart is carried on, so a cycle's own share counts.
        yield _Difference(apart / sizes[0], f"the step of the optimizer {place}")


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
