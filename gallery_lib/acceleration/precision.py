"""Precision that the config declares, held against that of the first step.

Autocast stays in the user's loop, so the config can only say what is there. Where the two differ
the training runs in another precision than was meant, and that is said once.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gallery_lib.comm import process_group
from gallery_lib.compiler.calls import Call, wrap_calls
from gallery_lib.config import Config
from gallery_lib.errors import InputError

_BETWEEN = ("gallery_lib", "torch")
"""Packages whose code lies between the user's call of a model and its check."""


def check(config: Config) -> None:
    """Raise InputError where the config declares two precisions."""
    if config.compute.fp16 and config.compute.bf16:
        raise InputError(
            "config.compute.fp16 and config.compute.bf16 are both set, and a training runs under "
            "one autocast. Leave one of them out.",
            parameter="compute.bf16",
        )


def note(
    model: nn.Module, config: Config, device: torch.device, record: dict[str, str]
) -> dict[str, str]:
    """Note a declared precision that this device lacks; check another one at the first step.

    `compute.fp16` and `compute.bf16` of the config declare autocast of a dtype. The check adds
    `precision` to `record`, where the training does not run as declared.
    """
    if config.compute.fp16 and device.type == "cpu":
        text = (
            "fp32: float16 was asked for, and this run is on the CPU, where it is not offered; "
            "bfloat16 is"
        )
        warnings.warn(f"accelerate(): {text}", stacklevel=_level_of_user())
        return {"precision": text}
    if config.compute.fp16:
        _check_first_step(model, "fp16", torch.float16, device.type, record)
    elif config.compute.bf16:
        _check_first_step(model, "bf16", torch.bfloat16, device.type, record)
    return {}


def _check_first_step(
    model: nn.Module, name: str, dtype: torch.dtype, device: str, record: dict[str, str]
) -> None:
    waiting = True

    def check(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal waiting
        result = call(*args, **kwargs)
        if not waiting or not model.training or not torch.is_grad_enabled():
            return result
        waiting = False
        found = _other_precision(model, result, dtype, device)
        if found is None:
            return result
        word = str(dtype).removeprefix("torch.")
        record["precision"] = f"{found}; config.compute.{name} declares {word} autocast"
        if process_group.rank() == 0:
            warnings.warn(
                f"accelerate(): config.compute.{name} says that the training runs under {word} "
                f"autocast, and the model is called in {found}. Put the forward pass into "
                f'`with torch.autocast("{device}", dtype={dtype}):`, or do not set '
                f"config.compute.{name}.",
                stacklevel=_level_of_user(),
            )
        return result

    wrap_calls(model, check)


def _level_of_user() -> int:
    """Return the stack level, for a warning of the caller, of the code that called the model."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        level, frame = level + 1, frame.f_back
    return level


def _other_precision(model: nn.Module, result: Any, dtype: torch.dtype, device: str) -> str | None:
    """Return in which precision the model was called, or None where it is that of `dtype`.

    A model in `dtype` itself has it, and so has one that returns `dtype`, by an autocast inside.
    """
    if torch.is_autocast_enabled(device):
        running = torch.get_autocast_dtype(device)
        return None if running is dtype else f"{str(running).removeprefix('torch.')} autocast"
    own = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    returned = {one.dtype for one in pytree.tree_leaves(result) if isinstance(one, Tensor)}
    if dtype in own | returned:
        return None
    names = sorted(str(each).removeprefix("torch.") for each in own)
    return "fp32" if names in ([], ["float32"]) else " and ".join(names)
