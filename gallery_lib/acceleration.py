"""`model, loader = accelerate(model, loader, config)`: the whole backend in one call.

Afterwards `model.device` exists, the loader yields batches on that device, sharded over the ranks of the run and
reshuffled every epoch, gradients are averaged over ranks by the time `optimizer.step()` runs, and
`model.state_dict()` has the plain model's keys. `with model.no_sync():` around the first batches of an accumulation
spares their communication, whether there are several processes or one. Each part is usable alone: `compiler.layout`, `compiler.backend`,
`comm.ddp`, `data.device_loader`. Nothing global is patched.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from gallery_lib.comm import process_group
from gallery_lib.comm.ddp import distribute
from gallery_lib.compiler import allocator
from gallery_lib.compiler.backend import compile_model
from gallery_lib.compiler.first_call import announce_first_call
from gallery_lib.compiler.fused_batch_norm import fuse_batchnorm
from gallery_lib.compiler.layout import memory_format
from gallery_lib.config import Config
from gallery_lib.data.device_loader import DeviceLoader
from gallery_lib.errors import InputError
from gallery_lib.kernels import fallback, usage
from gallery_lib.toggle import kernels_enabled
from gallery_lib.tune.candidates import Candidate
from gallery_lib.tune.first_batch import tune_at_first_step

_TECHNIQUES = "gallery_techniques"


def accelerate(model: nn.Module, loader: DataLoader[Any] | None = None, config: Config | None = None) -> tuple[Any, Any]:
    """Place, lay out, compile and distribute `model`; shard `loader` and bring its batches to the device.

    Args:
        model: any module, on any device; it is changed in place and, with several processes, wrapped.
        loader: a DataLoader whose batch size is per process, or None.
        config: what to do; `Config()` when left out.

    Returns the model and a DeviceLoader (None without a loader). Raises InputError when the model has been through
    here before, when the loader cannot be sharded, or when the compiler lacks something.
    """
    if hasattr(model, _TECHNIQUES):
        raise InputError("accelerate() was called twice on the same model. Call it once, and keep what it returned.")
    if without_values := [name for name, p in model.named_parameters() if p.is_meta]:
        raise InputError(
            f"the model's parameter {without_values[0]} has no values (it is on the meta device). Load or initialise it first."
        )
    config = config or Config()
    process_group.ensure_initialized()
    process_group.ensure_group_of_one()
    device = process_group.device()
    done: dict[str, str] = {}
    if config.compute.fp16 and device.type == "cpu":
        done["precision"] = "fp32: float16 was asked for, and this run is on the CPU, where it is not offered; bfloat16 is"
        warnings.warn(f"accelerate(): {done['precision']}", stacklevel=2)

    layout = memory_format(model, config.memory, device.type)
    model.to(device)
    if layout is not torch.contiguous_format:
        model.to(memory_format=layout)
        done["layout"] = "channels_last"
    if config.memory.allocator:
        done["allocator"] = allocator.apply() if device.type == "cpu" else "torch's caching allocator (CUDA)"
    if config.compute.kernels and (reason := usage.reason_not_used(device)):
        done["kernels"] = f"not used, {reason}"
        if device.type == "cuda" and kernels_enabled():
            fallback.announce(reason)
    elif config.compute.kernels and layout is torch.channels_last and (fusion := fuse_batchnorm(model)).relu + fusion.add_relu:
        done["batch norm"] = str(fusion)
    batches = None if loader is None else DeviceLoader(loader, device, layout, config.loader)
    if batches is not None and batches.niceness:
        done["loader"] = f"processes that load data at niceness {batches.niceness}"
    if config.tune.enabled:
        tune_at_first_step(model, config, device, done, lambda candidate: _follow(candidate, done, batches))
    elif config.compiler.enabled:
        done["compiler"] = compile_model(model, config.compiler, device)
        announce_first_call(model, done)
    if process_group.world_size() > 1 and any(p.requires_grad for p in model.parameters()):
        model = distribute(model, device, config.comm)
    for module in {model, plain_module(model)}:
        object.__setattr__(module, _TECHNIQUES, done)
    for name, value in {"device": device, "no_sync": contextlib.nullcontext}.items():
        if not hasattr(model, name):  # DDP has both of its own, and Hugging Face models have a device
            object.__setattr__(model, name, value)
    return model, batches


def _follow(candidate: Candidate, done: dict[str, str], batches: DeviceLoader | None) -> None:
    """What else changes with the candidate that was chosen: how batches are laid out, and what is said of the techniques."""
    done |= {"layout": candidate.layout, "compiler": candidate.backend or "none: eager"}
    if batches is not None:
        batches.memory_format = candidate.memory_format


def techniques(model: nn.Module) -> dict[str, str]:
    """What accelerate() did to this model, by technique; empty when it has not been through, or for the baseline."""
    return getattr(model, _TECHNIQUES, {})


def plain_module(model: nn.Module) -> nn.Module:
    """The user's own module inside what accelerate() returned."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
