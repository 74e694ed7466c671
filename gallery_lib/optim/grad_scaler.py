"""GradScaler whose step never waits for the device, with agreement of all ranks on skipped steps.

It is derived from `torch.amp.GradScaler` and can replace it: the methods and state dict are the
same. The differences are:

- Overflow is judged on the gradients as they are when `step` or `unscale_` is called, after their
  reduction. The ranks of the process group agree on it (one all-reduce of a scalar, which NCCL
  enqueues). So no rank skips alone.
- Where own kernels run, they check the gradients.
- `skipped_steps` are counted on the device.

This package's optimizers, and torch's fused ones, take scale and flag themselves
(`_step_supports_amp_scaling`). Any other optimizer works as with torch's scaler: the host reads the
flag to decide, which waits for the device.

`Updates` is what follows a backward pass: clip, step unless gradients overflowed, adapt scale and
schedule.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from gallery_lib.kernels.gradient_statistics import gradient_statistics
from gallery_lib.kernels.runtime import usage


def _gradients_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the gradients that a step would use; of sparse ones the values."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    gradients = [p.grad for p in parameters if p.grad is not None]
    return [gradient._values() if gradient.is_sparse else gradient for gradient in gradients]


class GradScaler(torch.amp.GradScaler):
    """torch's GradScaler without waiting for the device, and with the same arguments.

    `across_ranks`: agree with the other ranks on overflow. Then every rank has to call `step`.

    Example:
        >>> import torch
        >>> from gallery_lib.optim.grad_scaler import GradScaler
        >>> from gallery_lib.optim.sync_free import AdamW
        >>> model, scaler = torch.nn.Linear(4, 1), GradScaler("cpu")
        >>> optimizer = AdamW(model.parameters(), lr=1e-3)
        >>> scaler.scale(model(torch.ones(8, 4)).mean()).backward()
        >>> scaler.step(optimizer)
        >>> scaler.update()
        >>> scaler.skipped_steps()
        0
    """

    def __init__(
        self, device: str = "cuda", *args: Any, across_ranks: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(device, *args, **kwargs)
        self._across_ranks = across_ranks
        self._skips: Tensor | None = None  # their number, on the device

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_skips": None}

    def skipped_steps(self) -> int:
        """Return the number of steps skipped since this object was made; waits for the device."""
        return 0 if self._skips is None else int(self._skips)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Take a step as torch's scaler does, and count it if it was skipped."""
        result = super().step(optimizer, *args, **kwargs)
        if self._enabled:
            (found_inf,) = self._found_inf_per_device(optimizer).values()
            if self._skips is None:
                self._skips = torch.zeros((), dtype=torch.int64, device=found_inf.device)
            self._skips += found_inf.reshape(()) != 0
        return result

    # Overrides of the parts of torch's step, unscale_ and update.

    def _check_inf_per_device(self, optimizer: torch.optim.Optimizer) -> dict[Any, Any]:
        gradients = _gradients_of(optimizer)
        devices = set(map(attrgetter("device"), gradients))
        if not all(usage.used(device) for device in devices):
            return super()._check_inf_per_device(optimizer)
        flags_by_device = {
            device: gradient_statistics(
                gradients if len(devices) == 1 else [g for g in gradients if g.device == device]
            )[1]
            for device in devices
        }
        flag = self._agreed(flags_by_device)
        self._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = flag
        return flag

    def _unscale_grads_(self, *arguments: Any, **named: Any) -> dict[torch.device, Tensor]:
        return self._agreed(super()._unscale_grads_(*arguments, **named))

    def _agreed(self, flags_by_device: dict[torch.device, Tensor]) -> dict[torch.device, Tensor]:
        """Return one overflow flag, on the scale's device, for all devices and ranks."""
        scale, _ = self._check_scale_growth_tracker("step")
        flags = [flag.to(scale.device, non_blocking=True) for flag in flags_by_device.values()]
        flag = torch.stack(flags).amax() if len(flags) > 1 else (*flags, scale.new_zeros(()))[0]
        if self._across_ranks and dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return {scale.device: flag}


class Updates:
    """Optimizer, scaler, schedule and clipping of a training as one update.

    The schedule counts every step, skipped or not, as in torch's own examples.
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
