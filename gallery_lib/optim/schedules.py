"""Learning-rate schedules: torch's by name, and one that leaves out skipped steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from gallery_lib.errors import InputError

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


class SkipAware:
    """Wrapper of a scheduler of torch that leaves out skipped steps; call `step` after every step.

    The device decides whether a step is skipped, and the host need not wait for it: the wrapped
    schedule advances just before the optimizer's next step, when that step's backward pass is
    enqueued already. `settle()` brings it up to date; so does reading a state dict. With a scaler
    of torch's, which does not tell, every step counts.

    Example:
        >>> import torch
        >>> from gallery_lib.optim.schedules import SkipAware
        >>> from gallery_lib.optim.sync_free import SGD
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = SGD(model.parameters(), lr=0.1)
        >>> schedule = SkipAware(torch.optim.lr_scheduler.StepLR(optimizer, step_size=1))
        >>> model(torch.ones(8, 4)).mean().backward()
        >>> optimizer.step()
        >>> schedule.step()
    """

    def __init__(self, schedule: LRScheduler) -> None:
        if isinstance(schedule, ReduceLROnPlateau):
            raise InputError(
                "ReduceLROnPlateau follows a metric and not the number of steps: "
                "step it as torch does, without SkipAware.",
                parameter="scheduler",
            )
        self.schedule, self.optimizer = schedule, schedule.optimizer
        self._skipped: Tensor | None = None  # flag of the last step, on the host
        self._arrived: Any = None  # event after which the host may read it
        self.optimizer.register_step_pre_hook(lambda *_: self.settle())
        self.optimizer.register_state_dict_pre_hook(lambda *_: self.settle())
        self.optimizer.register_load_state_dict_pre_hook(lambda *_: self.settle())

    def step(self) -> None:
        """Note a step of the optimizer, skipped or not."""
        self.settle()
        flag: Tensor | None = getattr(self.optimizer, "step_was_skipped", None)
        if flag is None:
            self.schedule.step()
            return
        self._skipped = flag.detach()
        if flag.is_cuda:
            self._skipped = torch.empty(flag.shape, dtype=flag.dtype, pin_memory=True)
            self._skipped.copy_(flag, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record(torch.cuda.current_stream(flag.device))

    def settle(self) -> None:
        """Bring the wrapped schedule to the updates that were done; may wait for the last step."""
        if self._skipped is None:
            return
        if self._arrived is not None:
            self._arrived.synchronize()
        skipped = bool(self._skipped.numpy())  # host memory: nothing else is waited for
        self._skipped = self._arrived = None
        if not skipped:
            self.schedule.step()

    def get_last_lr(self) -> list[Any]:
        """Return the learning rates of the next step."""
        self.settle()
        return self.schedule.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        """Return the wrapped schedule's state dict, at the updates done."""
        self.settle()
        return self.schedule.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of this class or of torch's.

        As in torch, the learning rates come with the optimizer's state.
        """
        self.settle()
        self.schedule.load_state_dict(state_dict)
