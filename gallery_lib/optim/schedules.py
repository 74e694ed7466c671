"""Learning-rate schedules: functions from the number of updates done to a learning-rate factor."""

from __future__ import annotations

import math
from collections.abc import Callable


def noam(warmup_updates: int) -> Callable[[int], float]:
    """Return the Noam schedule as a factor of its peak.

    Vaswani et al., "Attention Is All You Need", 2017, equation 3. The factor at update n (from 0)
    rises linearly to 1 at the `warmup_updates`-th update, then falls as 1/√n. So the learning rate
    beside it is the peak, k / √(width × warmup_updates) in the paper's terms.
    """

    def factor(updates_done: int) -> float:
        update = updates_done + 1
        return min(update / warmup_updates, math.sqrt(warmup_updates / update))

    return factor
