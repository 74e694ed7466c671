"""Precision of a run: fp32 (O0) or autocast (O1), with loss scaling where the dtype needs it."""

from __future__ import annotations

import contextlib
from typing import Literal

import torch

from gallery_lib.errors import InputError
from gallery_lib.optim.grad_scaler import GradScaler
from gallery_lib.system import hardware

Level = Literal["auto", "O0", "O1"]
Dtype = Literal["auto", "bf16", "fp16"]


def chosen_level(asked: Level, device_type: str) -> Literal["O0", "O1"]:
    """Return the amp level; `auto` means O1 where the device computes in half precision, else O0.

    Elsewhere O0 is faster than emulating half precision.
    """
    if asked != "auto":
        return asked
    return "O1" if device_type == "cuda" or hardware.computes_in_bf16(device_type) else "O0"


def autocast_dtype(amp_level: Level, amp_dtype: Dtype, device_type: str) -> torch.dtype | None:
    """Return the dtype of autocast, or None under O0; the options are those of `TrainConfig`.

    Raises:
        InputError: where the device cannot train in that dtype.
    """
    if chosen_level(amp_level, device_type) == "O0":
        return None
    if device_type == "cpu" and amp_dtype == "fp16":
        raise InputError(
            "amp_dtype=fp16 is not offered on the CPU: few CPUs compute in it and gradients "
            "underflow. Use bf16 (the default there).",
            parameter="amp_dtype",
        )
    is_fp16 = amp_dtype == "fp16" or (
        amp_dtype == "auto" and device_type != "cpu" and not hardware.computes_in_bf16(device_type)
    )
    return torch.float16 if is_fp16 else torch.bfloat16


def described(amp_level: Level, amp_dtype: Dtype, device_type: str) -> str:
    """Return the precision of a run in words, such as `bf16 autocast (auto)`."""
    dtype = autocast_dtype(amp_level, amp_dtype, device_type)
    words = {None: "fp32", torch.bfloat16: "bf16 autocast", torch.float16: "fp16 autocast"}[dtype]
    return f"{words} (auto)" if amp_level == "auto" else words


def autocast(
    dtype: torch.dtype | None, device_type: str
) -> contextlib.AbstractContextManager[None]:
    """Return the context of forward pass and loss: autocast, or no effect in fp32."""
    return (
        torch.autocast(device_type, dtype=dtype) if dtype is not None else contextlib.nullcontext()
    )


def grad_scaler(
    dtype: torch.dtype | None, device_type: str, *, sync_free: bool = False
) -> torch.amp.GradScaler:
    """Return a gradient scaler that acts only under float16: torch's, or the sync-free one."""
    kind = GradScaler if sync_free else torch.amp.GradScaler
    return kind(device_type, enabled=dtype is torch.float16)
