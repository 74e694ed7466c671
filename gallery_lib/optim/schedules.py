"""Learning-rate schedules: torch's by name, and functions from updates done to a factor."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

WITH_LENGTH = ("linear", "cosine", "step", "onecycle")
"""Names of the schedules that go over a number of steps."""

_FALL = 0.1  # of `step`, at each fall


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
    name: str,
    optimizer: Optimizer,
    *,
    steps: int,
    warmup_steps: int = 0,
    step_size: int | None = None,
) -> LRScheduler | None:
    """Return torch's scheduler of that name, to be stepped after each update; None for a constant.

    Update number `warmup_steps` (from 0) is the first with the optimizer's learning rate. Before it
    the rate rises in a line from its (warmup_steps + 1)-th part, or as OneCycleLR does.

    Args:
        name: `none` or one of WITH_LENGTH.
        optimizer: the optimizer, with the highest learning rate.
        steps: updates that the schedule goes over, the warm-up included.
        warmup_steps: updates of the warm-up, at most `steps` − 2. For `onecycle`, 0 is torch's
            share of 30 %.
        step_size: updates between two falls of `step`; None: a third of those after the warm-up.
    """
    if name == "onecycle":
        return lr_scheduler.OneCycleLR(
            optimizer,
            max_lr=[group["lr"] for group in optimizer.param_groups],
            total_steps=steps,
            pct_start=(warmup_steps + 1) / steps if warmup_steps else 0.3,
            cycle_momentum=False,
        )
    if not warmup_steps:
        return None if name == "none" else _after_warmup(name, optimizer, steps, step_size)
    warmup = lr_scheduler.LinearLR(optimizer, 1 / (warmup_steps + 1), total_iters=warmup_steps)
    if name == "none":
        return warmup
    after = _after_warmup(name, optimizer, steps - warmup_steps, step_size)
    return lr_scheduler.SequentialLR(optimizer, [warmup, after], milestones=[warmup_steps])


def _after_warmup(
    name: str, optimizer: Optimizer, steps: int, step_size: int | None
) -> LRScheduler:
    if name == "linear":
        return lr_scheduler.LinearLR(optimizer, 1.0, end_factor=0.0, total_iters=steps)
    if name == "cosine":
        return lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    return lr_scheduler.StepLR(optimizer, step_size or math.ceil(steps / 3), gamma=_FALL)
