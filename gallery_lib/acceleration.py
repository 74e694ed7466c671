"""`model, loader = accelerate(model, loader, config)`: the whole backend in one call.

Afterwards `model.device` exists, the loader yields batches on that device, sharded over the ranks of the run and
reshuffled every epoch, gradients are averaged over ranks by the time `optimizer.step()` runs, and
`model.state_dict()` has the plain model's keys. Each part is usable alone: `compiler.layout`, `compiler.backend`,
`comm.ddp`, `data.device_loader`. Nothing global is patched.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from gallery_lib.comm import process_group
from gallery_lib.comm.ddp import distribute
from gallery_lib.compiler import allocator
from gallery_lib.compiler.backend import compile_model
from gallery_lib.compiler.layout import memory_format
from gallery_lib.config import Config
from gallery_lib.data.device_loader import DeviceLoader
from gallery_lib.errors import InputError

_TECHNIQUES = "gallery_techniques"


def accelerate(model: nn.Module, loader: DataLoader[Any] | None = None, config: Config | None = None) -> tuple[Any, Any]:
    """Place, lay out, compile and distribute `model`; shard `loader` and bring its batches to the device.

    Args:
        model: any module, on any device; it is changed in place and, with several processes, wrapped.
        loader: a map-style DataLoader whose batch size is per process, or None.
        config: what to do; `Config()` when left out.

    Returns the model and a DeviceLoader (None without a loader). Raises InputError when the model has been through
    here before, when the loader cannot be sharded, or when the compiler lacks something.
    """
    if hasattr(model, _TECHNIQUES):
        raise InputError("accelerate() was called twice on the same model. Call it once, and keep what it returned.")
    config = config or Config()
    process_group.ensure_initialized()
    device = process_group.device()
    done: dict[str, str] = {}

    layout = memory_format(model, config.memory)
    model.to(device)
    if layout is not torch.contiguous_format:
        model.to(memory_format=layout)
        done["layout"] = "channels_last"
    if config.memory.allocator:
        if device.type == "cpu":
            why_not = allocator.reason_not_applied() or "the process was not started by the launcher"
            done["allocator"] = "glibc keeps large blocks" if allocator.active() else f"not applied: {why_not}"
        else:
            done["allocator"] = "torch's caching allocator (CUDA)"
    if config.compiler.enabled:
        done["compiler"] = compile_model(model, config.compiler, device)
    if process_group.world_size() > 1 and any(p.requires_grad for p in model.parameters()):
        model = distribute(model, device)
    for module in {model, plain_module(model)}:
        object.__setattr__(module, _TECHNIQUES, done)
    with contextlib.suppress(AttributeError):  # DDP has a `device` of its own, and so have Hugging Face models
        if not hasattr(model, "device"):
            model.device = device  # type: ignore[assignment]
    return model, None if loader is None else DeviceLoader(loader, device, layout)


def techniques(model: nn.Module) -> dict[str, str]:
    """What accelerate() did to this model, by technique; empty when it has not been through, or for the baseline."""
    return getattr(model, _TECHNIQUES, {})


def plain_module(model: nn.Module) -> nn.Module:
    """The user's own module inside what accelerate() returned."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
