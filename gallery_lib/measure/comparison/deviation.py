"""Deviations of a parity check, each with its limit; the worst of them makes the check's result."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from gallery_lib.measure.comparison.result import Check

ERROR_FACTOR = 3.0
"""How many times as large as the baseline's error a candidate's may be, beside the tolerance."""


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
        """Return the value over its limit.

        The limit is 0 where the exact value is: the loss over a single class, say.
        """
        if self.limit == 0:
            return 0.0 if self.value == 0 else math.inf
        return self.value / self.limit if self.value == self.value else math.inf


def check_of(name: str, deviations: Sequence[Deviation], *, of_parameters: bool = False) -> Check:
    """Return the check made of deviations: that nearest to, or furthest over, its limit decides.

    Where they are those of parameters, the check has their median.
    """
    if not deviations:
        return Check(name, False, math.inf, 0.0, "nothing to compare")
    worst = max(deviations, key=lambda deviation: deviation.share_of_limit)
    return Check(
        name,
        all(deviation.within for deviation in deviations),
        worst.value if worst.value == worst.value else math.inf,
        worst.limit,
        worst.where,
        worst.baselines,
        statistics.median(d.value if d.value == d.value else math.inf for d in deviations)
        if of_parameters
        else None,
    )
