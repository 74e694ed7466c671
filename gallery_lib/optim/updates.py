"""Update after a backward pass: clip, step unless gradients overflowed, adapt scale and schedule.

With this package's GradScaler nothing of it waits for the device. With torch's, a skipped step
shows in the scale, which the host reads. That is how the baseline keeps its schedule right.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from gallery_lib.optim.grad_scaler import GradScaler
from gallery_lib.optim.skip_aware_schedule import SkipAware
from gallery_lib.optim.sync_free_step import SyncFree


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
        self.schedule: SkipAware | LRScheduler | None = schedule
        if schedule is not None and isinstance(scaler, GradScaler):
            self.schedule = SkipAware(schedule)
        self._skipped = 0
        self.skipped_before = 0
        """Steps that were skipped before a resume."""

    def take(self) -> None:
        """Make one update from the present gradients, or none if they overflowed."""
        if self.max_norm is not None:
            self._clip(self.max_norm)
        if isinstance(self.scaler, GradScaler):
            self.scaler.step(self.optimizer)
            self.scaler.update()
            # The host need not know: the schedule asks on the device.
            skipped = False
        else:
            scale = self.scaler.get_scale()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            skipped = self.scaler.get_scale() < scale
            self._skipped += skipped
        if self.schedule is not None and not skipped:
            self.schedule.step()

    def _clip(self, max_norm: float) -> None:
        if isinstance(self.scaler, GradScaler) and isinstance(self.optimizer, SyncFree):
            self.optimizer.clip_factor = clip_factor(
                self.scaler.gradient_norm(self.optimizer), max_norm
            )
        else:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(
                [p for group in self.optimizer.param_groups for p in group["params"]], max_norm
            )

    def skipped_steps(self) -> int:
        """Return the number of steps skipped so far; may wait for the device."""
        own = isinstance(self.scaler, GradScaler)
        return self.skipped_before + (
            self.scaler.skipped_steps() if own else self._skipped  # type: ignore[attr-defined]
        )


# --------------------------------------------------------------------------------------------------
# Clipping of gradients on the device: the factor that a sync-free optimizer applies.


def clip_factor(norm: Tensor, max_norm: float, gradient_scale: Tensor | None = None) -> Tensor:
    """Return the factor that brings the gradients' norm to at most `max_norm`.

    The formula is that of `clip_grad_norm_`. All stays on the device.

    Args:
        norm: norm of the gradients as they are.
        max_norm: the most that the norm may be.
        gradient_scale: the scale of `norm`, if it is scaled.
    """
    if gradient_scale is not None:
        norm = norm / gradient_scale
    return (max_norm / (norm + 1e-6)).clamp(max=1.0).float()
