"""Tuning of PyTorch by hand: what the best form of each peer adds to its documentation.

- torch's fused optimizer, where torch has one of that class; otherwise the optimizer as it comes
- channels_last for weights and images, where convolutions gain from it and the model's code is of
  libraries that take it
- on the CPU, glibc's tunables, with which it keeps large blocks
- the fastest of torch.compile's modes (compile_mode.py)

Each is a flag or an environment variable of torch or of the C library. Nothing of this backend is
used: not its one-pass optimizers, not its compiler passes, not its way of loading.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from gallery_lib.config import Memory
from gallery_lib.memory import allocator
from gallery_lib.memory.layout import memory_format, takes_any_layout
from gallery_lib.train.recipe import Plain

DEFAULT_MODE = "default"
MODES = {
    "cpu": (DEFAULT_MODE, "max-autotune-no-cudagraphs"),
    "cuda": (DEFAULT_MODE, "max-autotune"),
}
"""Modes of torch.compile that may be the fastest, by kind of device."""


@dataclass
class Form:
    """How a peer is used; `done` tells, by technique, what was done beyond its documentation."""

    build_optimizer: Callable[[], torch.optim.Optimizer]
    layout: torch.memory_format = torch.contiguous_format  # layout of images
    mode: str = DEFAULT_MODE
    done: dict[str, str] = field(default_factory=dict)


def as_it_comes(plain: Plain) -> Form:
    """Return the form that a peer's documentation shows."""
    return Form(lambda: plain.build_optimizer(accelerated=False))


def at_its_best(plain: Plain, device: torch.device, mode: str) -> Form:
    """Lay out the model and return the form of somebody who tunes by hand."""
    done: dict[str, str] = {}
    layout = _lay_out(plain.model, device, done)
    done["allocator"] = _allocator(device)
    return Form(lambda: _optimizer(plain, done), layout, mode, done)


def allocator_variables(device_type: str) -> dict[str, str]:
    """Return the variables of a process: on the CPU, those that have glibc keep large blocks."""
    return allocator.allocator_variables() if device_type == "cpu" else {}


def _lay_out(model: nn.Module, device: torch.device, done: dict[str, str]) -> torch.memory_format:
    layout = memory_format(model, Memory(), device.type)
    if layout is torch.contiguous_format:
        return layout
    if not takes_any_layout(model):
        done["layout"] = "contiguous: code of the model's own may need it"
        return torch.contiguous_format
    model.to(memory_format=layout)  # type: ignore[call-overload]
    done["layout"] = "channels_last"
    return layout


def _allocator(device: torch.device) -> str:
    """Return what was done, in the words that `process_spread` looks for."""
    if device.type != "cpu":
        return "torch's caching allocator (CUDA)"
    if reason := allocator.reason_not_applied():
        return f"not applied: {reason}"
    return (
        f"{allocator.KEEPS} (GLIBC_TUNABLES)"
        if allocator.active()
        else "not applied: started without GLIBC_TUNABLES"
    )


def _optimizer(plain: Plain, done: dict[str, str]) -> torch.optim.Optimizer:
    optimizer = plain.build_optimizer(accelerated=False)
    kind = type(optimizer)
    if "fused" not in inspect.signature(kind).parameters:
        done["optimizer"] = f"{kind.__name__} as it comes: torch has no fused form of it"
        return optimizer
    done["optimizer"] = f"{kind.__name__}, torch's fused form"
    return plain.build_optimizer(accelerated=False, fused=True)
