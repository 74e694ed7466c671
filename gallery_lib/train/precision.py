"""Precision of a run: fp32 (O0) or autocast (O1), and gradient scaling where the dtype needs it.

The scaler that never waits for the device is `optim/grad_scaler.py`; the baseline has torch's.
"""

from __future__ import annotations

import contextlib
from typing import Literal

import torch

from gallery_lib.config import TrainConfig
from gallery_lib.errors import InputError
from gallery_lib.optim.grad_scaler import GradScaler
from gallery_lib.system import hardware


def chosen_level(asked: Literal["auto", "O0", "O1"], device_type: str) -> Literal["O0", "O1"]:
    """What `auto` stands for: O1 where the device computes in half precision, else O0, which is faster than emulating it."""
    if asked != "auto":
        return asked
    return "O1" if device_type == "cuda" or hardware.computes_in_bf16(device_type) else "O0"


def autocast_dtype(config: TrainConfig, device_type: str) -> torch.dtype | None:
    """The dtype of autocast, or None under O0. Raises InputError where the device cannot train in it."""
    if config.amp_level == "O0":
        return None
    if device_type == "cpu":
        if config.amp_dtype == "fp16":
            raise InputError(
                "amp_dtype=fp16 is not offered on the CPU: few CPUs compute in it and gradients underflow. Use bf16 (the default there)."
            )
        return torch.bfloat16
    if config.amp_dtype == "bf16" or (
        config.amp_dtype == "auto" and hardware.computes_in_bf16(device_type)
    ):
        return torch.bfloat16
    return torch.float16


def notice(dtype: torch.dtype | None, device_type: str, *, accelerated: bool) -> str | None:
    """What one should know before the first step of a run that will be slow for its precision, or None."""
    if dtype is not torch.bfloat16 or accelerated or hardware.computes_in_bf16(device_type):
        return None
    device = "CPU" if device_type == "cpu" else "GPU"
    return (
        f"This {device} has no bfloat16 units, so O1 is emulated: a step may take many times as long as at O0. "
        "Use --amp_level=O0, or --compiler-opt, which computes bfloat16 on the fp32 units of a CPU."
    )


def autocast(
    dtype: torch.dtype | None, device_type: str
) -> contextlib.AbstractContextManager[None]:
    """The context of forward pass and loss."""
    return (
        torch.autocast(device_type, dtype=dtype) if dtype is not None else contextlib.nullcontext()
    )


def grad_scaler(
    dtype: torch.dtype | None, device_type: str, *, sync_free: bool = False
) -> torch.amp.GradScaler:
    """A gradient scaler that acts under float16 and passes everything through otherwise: torch's, or the sync-free one."""
    kind = GradScaler if sync_free else torch.amp.GradScaler
    return kind(device_type, enabled=dtype is torch.float16)
