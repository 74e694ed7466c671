"""Optimizers: the one that a task uses, its schedule, and its accelerated implementation.

- `fused_cpu`: Adam, AdamW, SGD, RMSprop and RAdam in one pass over memory on the CPU.
- `sync_free`: optimizers whose step never waits for the device, with own CUDA kernels.
- `adoption`: change a user's optimizer in place to the fastest of these forms.
- `grad_scaler`: a GradScaler that checks, skips and rescales on the device. All ranks skip
  together. `Updates` clips, steps, scales and schedules, in the order of a training loop.
- `torchs_step`: torch's own step, for groups that an accelerated form is not written for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler

from gallery_lib.optim import fused_cpu
from gallery_lib.optim.adoption import accelerate_optimizer
from gallery_lib.optim.sync_free import SyncFree

WITH_LENGTH = ("linear", "cosine")
"""Names of the schedules that go over a number of steps."""


@dataclass(frozen=True)
class OptimizerSpec:
    """A torch.optim class by name with its hyper-parameters.

    Learning rate and weight decay may be overridden.

    Example:
        >>> import torch
        >>> from gallery_lib.optim import OptimizerSpec
        >>> spec = OptimizerSpec("AdamW", lr=1e-3, weight_decay=0.01)
        >>> parameters = torch.nn.Linear(4, 1).parameters()
        >>> optimizer = spec.build(parameters, lr=None, weight_decay=None, accelerated=True)
    """

    name: str
    lr: float
    weight_decay: float = 0.0
    arguments: dict[str, Any] = field(default_factory=dict)
    schedule: Callable[[int], float] | None = None
    """Factor of the learning rate at step number n, from 0."""

    @property
    def in_words(self) -> str:
        """Return the optimizer with its arguments: `SGD, lr 0.02, momentum 0.9`."""
        arguments = {"lr": self.lr, "weight_decay": self.weight_decay, **self.arguments}
        words = (f"{name} {value}" for name, value in arguments.items() if value)
        return ", ".join([self.name, *words])

    def build(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        lr: float | None,
        weight_decay: float | None,
        accelerated: bool,
        **form: bool,
    ) -> torch.optim.Optimizer:
        """Return torch's optimizer, or with `accelerated` its accelerated implementation.

        `accelerate_optimizer` chooses the implementation for the parameters' device.

        Args:
            parameters: the parameters to optimize.
            lr: learning rate; None: that of the spec.
            weight_decay: weight decay; None: that of the spec.
            accelerated: whether to accelerate the optimizer.
            **form: selects one of torch's own implementations: `fused=True`, or `foreach=True`.
        """
        arguments = {
            "lr": self.lr if lr is None else lr,
            "weight_decay": self.weight_decay if weight_decay is None else weight_decay,
            **self.arguments,
            **form,
        }
        optimizer = getattr(torch.optim, self.name)(parameters, **arguments)
        if accelerated:
            accelerate_optimizer(optimizer)
        return optimizer


def kind(optimizer: torch.optim.Optimizer) -> str:
    """Return which implementation runs the optimizer: `sync-free`, `fused` or `torch's own`."""
    if isinstance(optimizer, SyncFree):
        return "sync-free"
    return (
        "fused"
        if isinstance(optimizer, fused_cpu.OnePass) or optimizer.defaults.get("fused")
        else "torch's own"
    )


def first_step_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of gradients and states that the optimizer's first step adds.

    The states are derived from the usual names of options.
    """
    total = 0
    for group in optimizer.param_groups:
        states = 2 * ("betas" in group) + ("alpha" in group) + bool(group.get("momentum"))
        total += (1 + states) * sum(
            p.numel() * p.element_size() for p in group["params"] if p.requires_grad
        )
    return total


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
    name: str, optimizer: torch.optim.Optimizer, *, steps: int, warmup_steps: int = 0
) -> lr_scheduler.LRScheduler | None:
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
    after: lr_scheduler.LRScheduler | None = None
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
