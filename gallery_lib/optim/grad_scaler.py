"""A GradScaler whose step never waits for the device: scale, check, agreement of the ranks, skip, update of the scale.

Usable where `torch.amp.GradScaler` is: the same methods and state dict, from which it is derived. What differs:

- Overflow is judged on the gradients as they are when `step` or `unscale_` is called, after their reduction, and the
  ranks of the process group agree on it (one all-reduce of a scalar, which NCCL enqueues). So no rank skips alone.
- With our optimizers, and own kernels on, gradients are read once for the check and for their norm (`gradient_norm`).
- `step_was_skipped` is a flag on the device; `skipped_steps(wait=False)` counts the steps that the host knows of by now.

An optimizer that does not take scale and flag itself (`_step_supports_amp_scaling`: ours, and torch's fused ones do)
works as with torch's scaler: the host reads the flag to decide, which waits for the device. That is said once per class.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gallery_lib.errors import InputError
from gallery_lib.kernels.gradient_statistics import gradient_statistics
from gallery_lib.kernels.runtime import usage
from gallery_lib.optim.device_count import DeviceCount
from gallery_lib.optim.sync_free import SyncFree


class WaitsForDevice(RuntimeWarning):
    """An optimizer cannot skip a step on the device; the host waits for the overflow flag at every step."""


@functools.cache
def _announce(optimizer: str) -> None:
    warnings.warn(
        f"{optimizer} cannot skip a step on the device: the scaler waits at each of its steps for the overflow flag. "
        "gallery_lib.optim.sync_free has optimizers that can, and torch's Adam, AdamW, SGD and Adagrad can with fused=True.",
        WaitsForDevice,
        stacklevel=5,
    )


def gradients_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The gradients that a step would use; of sparse ones the values."""
    found = [
        p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None
    ]
    return [gradient._values() if gradient.is_sparse else gradient for gradient in found]


class GradScaler(torch.amp.GradScaler):
    """Arguments as torch's, and `across_ranks`: agree with the other ranks, of whom then each has to call `step`."""

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        *,
        across_ranks: bool = True,
    ) -> None:
        super().__init__(
            device, init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )
        self._across_ranks = across_ranks
        self._skips: DeviceCount | None = None
        self.step_was_skipped: Tensor | None = None
        """Of the latest step: a scalar on the device, not 0 if it was skipped. None before the first, and when disabled."""

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_skips": None, "step_was_skipped": None}

    def skipped_steps(self, *, wait: bool = True) -> int:
        """Steps skipped since this object was made. Without `wait`, those that the host knows of by now."""
        if self._skips is None:
            return 0
        return self._skips.wait() if wait else self._skips.known()[1]

    def gradient_norm(self, optimizer: torch.optim.Optimizer) -> Tensor:
        """The L2 norm of the optimizer's gradients without the scale, an fp32 scalar on their device.

        To be called before `step`, which takes from the same read whether they overflowed. Raises InputError for an
        optimizer that is none of `sync_free`, and RuntimeError when its gradients have been looked at already.
        """
        if not isinstance(optimizer, SyncFree):
            raise InputError(
                f"gradient_norm takes an optimizer of gallery_lib.optim.sync_free, not {type(optimizer).__name__}."
            )
        norm, found_inf = gradient_statistics(gradients_of(optimizer))
        if not self._enabled:
            return norm
        scale, _ = self._check_scale_growth_tracker("gradient_norm")
        state = self._per_optimizer_states[id(optimizer)]
        if state["found_inf_per_device"]:
            raise RuntimeError(
                "gradient_norm() comes after unscale_(), step() or another gradient_norm() since the last update()."
            )
        state["found_inf_per_device"] = self._agreed({found_inf.device: found_inf})
        return norm / scale.to(norm.device, non_blocking=True)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """As torch's; `step_was_skipped` is set here, and on the optimizer."""
        result = super().step(optimizer, *args, **kwargs)
        if self._enabled:
            (found_inf,) = self._found_inf_per_device(optimizer).values()
            self.step_was_skipped = found_inf.clone()
            optimizer.step_was_skipped = self.step_was_skipped  # type: ignore[attr-defined]
            if self._skips is None:
                self._skips = DeviceCount(found_inf.device)
            self._skips.add(found_inf != 0)
        return result

    # What torch's step, unscale_ and update are made of.

    def _check_inf_per_device(self, optimizer: torch.optim.Optimizer) -> dict[Any, Any]:
        state = self._per_optimizer_states[id(optimizer)]
        if state["found_inf_per_device"]:  # gradient_norm has looked
            return state["found_inf_per_device"]
        gradients = gradients_of(optimizer)
        devices = {gradient.device for gradient in gradients}
        if not all(usage.used(device) for device in devices):
            return super()._check_inf_per_device(optimizer)
        found = {
            device: gradient_statistics([g for g in gradients if g.device == device])[1]
            for device in devices
        }
        state["found_inf_per_device"] = self._agreed(found)
        return state["found_inf_per_device"]

    def _unscale_grads_(self, *arguments: Any, **named: Any) -> dict[torch.device, Tensor]:
        return self._agreed(super()._unscale_grads_(*arguments, **named))

    def _maybe_opt_step(
        self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any
    ) -> float | None:
        _announce(f"{type(optimizer).__module__}.{type(optimizer).__qualname__}")
        return super()._maybe_opt_step(optimizer, *args, **kwargs)

    def _agreed(self, found: dict[torch.device, Tensor]) -> dict[torch.device, Tensor]:
        """One flag, on the scale's device, for all devices and ranks."""
        scale, _ = self._check_scale_growth_tracker("step")
        flags = [flag.to(scale.device, non_blocking=True) for flag in found.values()]
        flag = (
            flags[0]
            if len(flags) == 1
            else torch.stack(flags).amax()
            if flags
            else scale.new_zeros(())
        )
        if (
            self._across_ranks
            and dist.is_available()
            and dist.is_initialized()
            and dist.get_world_size() > 1
        ):
            dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return {scale.device: flag}
