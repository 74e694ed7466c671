"""Optimizers: the one that a task uses, and its accelerated implementation.

- `fused_cpu`: Adam, AdamW, SGD, RMSprop and RAdam in one pass over memory on the CPU.
- `sync_free`: optimizers whose step never waits for the device, with own CUDA kernels.
- `adoption`: change a user's optimizer in place to the fastest of these forms.
- `grad_scaler`: a GradScaler that checks, skips and rescales on the device. All ranks skip
  together.
- `schedules`: torch's schedules by name.
- `updates`: clip, step, scale and schedule, in the order of a training loop.
- `torchs_step`: torch's own step, for groups that an accelerated form is not written for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from gallery_lib.optim import fused_cpu
from gallery_lib.optim.adoption import accelerate_optimizer
from gallery_lib.optim.sync_free import SyncFree


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
