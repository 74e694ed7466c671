"""Learning-rate schedules: torch's by name, and Noam's."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

WITH_LENGTH = ("linear", "cosine")
"""Names of the schedules that go over a number of steps."""


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


def scheduler(
    name: str, optimizer: Optimizer, *, steps: int, warmup_steps: int = 0
) -> LRScheduler | None:
    """Return torch's scheduler of that name, to be stepped after each update; None for a constant.

    Update number `warmup_steps` (from 0) is the first with the optimizer's learning rate. Before it
    the rate rises in a line from its (warmup_steps + 1)-th part.

    Args:
        name: one of WITH_LENGTH; others are constant.
        optimizer: the optimizer, with the highest learning rate.
        steps: updates that the schedule goes over, the warm-up included.
        warmup_steps: updates of the warm-up, at most `steps` − 2.
    """
    length = steps - warmup_steps
    after: LRScheduler | None = None
    if name == "linear":
        after = lr_scheduler.LinearLR(optimizer, 1.0, end_factor=0.0, total_iters=length)
    elif name == "cosine":
        after = lr_scheduler.CosineAnnealingLR(optimizer, T_max=length)
    if not warmup_steps:
        return after
    warmup = lr_scheduler.LinearLR(optimizer, 1 / (warmup_steps + 1), total_iters=warmup_steps)
    if after is None:
        return warmup
    return lr_scheduler.SequentialLR(optimizer, [warmup, after], milestones=[warmup_steps])
