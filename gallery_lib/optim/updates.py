"""Update after a backward pass: clip, step unless gradients overflowed, adapt scale and schedule.

With this package's GradScaler the host does not wait for the device. The schedule counts every
step, skipped or not, as in torch's own examples.
"""

from __future__ import annotations

import torch
from torch.optim.lr_scheduler import LRScheduler

from gallery_lib.optim.grad_scaler import GradScaler


class Updates:
    """Optimizer, scaler, schedule and clipping of a training as one update.

    `max_norm` is the limit of the L2 norm of all gradients, None to leave them as they are.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler,
        schedule: LRScheduler | None = None,
        max_norm: float | None = None,
    ) -> None:
        self.optimizer, self.scaler, self.max_norm = optimizer, scaler, max_norm
        self.schedule = schedule
        self._skipped = 0
        self.skipped_before = 0
        """Steps that were skipped before a resume."""

    def learning_rate(self) -> float:
        """Return the first group's learning rate in the next update."""
        return float(self.optimizer.param_groups[0]["lr"])

    def take(self) -> None:
        """Make one update from the present gradients, or none if they overflowed."""
        if self.max_norm is not None:
            self.scaler.unscale_(self.optimizer)
            parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
            torch.nn.utils.clip_grad_norm_(parameters, self.max_norm)
        own = isinstance(self.scaler, GradScaler)
        scale = 0.0 if own else self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self._skipped += not own and self.scaler.get_scale() < scale
        if self.schedule is not None:
            # Otherwise torch warns where the scaler has skipped the first step.
            self.optimizer._opt_called = True  # type: ignore[attr-defined]
            self.schedule.step()

    def skipped_steps(self) -> int:
        """Return the number of steps skipped so far; may wait for the device."""
        own = self.scaler.skipped_steps() if isinstance(self.scaler, GradScaler) else 0
        return self.skipped_before + self._skipped + own
