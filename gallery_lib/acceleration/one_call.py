"""The whole backend in one call: `accelerate(model, loader, optimizer, scheduler, config)`.

Afterwards `model.device` exists. The loader yields batches on that device, divided among the ranks
of the run and reshuffled every epoch. Gradients are averaged over ranks by the time
`optimizer.step()` runs. Names of parameters and keys of `state_dict()` are the plain model's. `with
model.no_sync():` around the first batches of an accumulation spares their communication, whether
there are several processes or one.

Each part is usable alone: `memory.layout`, `compiler.backend`, `comm.ddp`,
`data.loading.device_loader`, `optim.adoption`. Nothing global is patched.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn

from gallery_lib.acceleration import arguments
from gallery_lib.comm import process_group
from gallery_lib.comm.ddp import distribute, laid_out_anew
from gallery_lib.compiler.backend import compile_model
from gallery_lib.compiler.calls import go_through
from gallery_lib.compiler.fusion.batch_norm import fuse_batchnorm
from gallery_lib.compiler.notices import announce_first_call
from gallery_lib.config import Config
from gallery_lib.config.switches import kernels_enabled
from gallery_lib.data.loading.device_loader import DeviceLoader
from gallery_lib.errors import InputError
from gallery_lib.kernels.runtime import fallback, usage
from gallery_lib.memory import allocator, layout_guard
from gallery_lib.memory.layout import memory_format
from gallery_lib.optim.adoption import accelerate_optimizer
from gallery_lib.tune.candidates import Candidate
from gallery_lib.tune.first_batch import tune_at_first_step

_done: WeakKeyDictionary[nn.Module, dict[str, str]] = WeakKeyDictionary()
"""What accelerate() did to each model, by technique."""


def accelerate(*given: Any, **named: Any) -> tuple[Any, ...]:
    """Place, lay out, compile and distribute a model; move its batches; speed up its optimizer.

    The call is `accelerate(model, loader=None, optimizer=None, scheduler=None, config=None)`. Parts
    may be given in any order, since their types tell them apart. They come back in the order given,
    without the config:

        model, optimizer, loader = accelerate(model, optimizer, loader)
        model, loader = accelerate(model, loader, config)

    The parts are:

    - `model`: any module, on any device. It is changed in place. With several processes its twin
      comes back, whose calls average gradients; `twin.module` is the model itself.
    - `loader`: a DataLoader whose batch size is per process, or another iterable of batches.
      Several may be given.
    - `optimizer`: one of torch.optim's classes takes the form that is fastest on the device, in
      place: the same object with its groups, state and hooks. Others stay as they are. Several may
      be given.
    - `scheduler`: comes back as it is.
    - `config`: what to do; `Config()` when left out.

    Returns the parts in the order given; `(model, None)` for a model alone. Raises InputError when
    the model has been through here before, when a part is none of these or cannot be used, or when
    the compiler lacks something.
    """
    sorted_parts = arguments.sort(given, named)
    config, original = sorted_parts.config, sorted_parts.model
    model = _checked(original)
    optimizers, loaders = sorted_parts.of_kind("optimizer"), sorted_parts.of_kind("loader")
    _check_optimizers(model, optimizers)
    device, several = _join_run(model), process_group.world_size() > 1
    done: dict[str, str] = {}
    _note_precision(config, device, done)
    layout = _lay_out(model, optimizers, config, device, done)
    late = layout is torch.channels_last and layout_guard.needs_strides(model)
    if layout is torch.channels_last and not late:
        model.to(memory_format=layout)  # type: ignore[call-overload]
    if config.memory.allocator:
        done["allocator"] = (
            allocator.apply() if device.type == "cpu" else "torch's caching allocator (CUDA)"
        )
    _use_kernels(model, config, device, layout, done)
    batches = {
        id(loader): DeviceLoader(
            loader, device, torch.contiguous_format if late else layout, config.loader
        )
        for loader in loaders
    }
    for niceness in {loader.niceness for loader in batches.values() if loader.niceness}:
        done["loader"] = f"processes that load data at niceness {niceness}"
    for optimizer in optimizers if config.compute.optimizer else ():
        done["optimizer"] = accelerate_optimizer(optimizer)

    result: Any = model

    def follow_layout(chosen: torch.memory_format) -> None:
        """Let batches and DDP's buckets follow the model into another layout."""
        for loader in batches.values():
            loader.memory_format = chosen
        laid_out_anew(result)

    _compile(model, config, device, done, _LayoutChange(layout, late, follow_layout))
    if several:
        result = distribute(model, device, config.comm)
    else:
        go_through(model, _alone)
    for module in (model, result):
        _done[module] = done
    _add_attributes(result, {"device": device, "no_sync": contextlib.nullcontext})
    return sorted_parts.handed_back({**batches, id(original): result})


class _LayoutChange(NamedTuple):
    """The layout of a model, and what follows a change of it.

    With `late` the model gets the layout with its first call.
    """

    layout: torch.memory_format
    late: bool
    follow: Callable[[torch.memory_format], None]


def _compile(
    model: nn.Module,
    config: Config,
    device: torch.device,
    done: dict[str, str],
    change: _LayoutChange,
) -> None:
    """Set up compilation or tuning at the first call of `model`, and guard its layout."""

    def guard(late: bool) -> None:
        go_through(model, layout_guard.LayoutGuard(model, done, change.follow, late=late))

    def follow(candidate: Candidate) -> None:
        """Apply the candidate that tuning has chosen to what depends on it."""
        done.update({"layout": candidate.layout, "compiler": candidate.backend or "none: eager"})
        if candidate.memory_format is torch.channels_last:
            guard(late=False)
        change.follow(candidate.memory_format)

    if config.tune.enabled:
        tune_at_first_step(model, config, device, done, follow)
        return
    if config.compiler.enabled:
        done["compiler"] = compile_model(model, config.compiler, device)
        announce_first_call(model, done)
    if change.layout is torch.channels_last:
        guard(change.late)


def _join_run(model: nn.Module) -> torch.device:
    """Join the run's process group, if there is one to join; return this process's device."""
    if process_group.world_size() > 1 or not _has_synchronized_norm(model):
        process_group.ensure_initialized()
    device = process_group.device()
    if process_group.world_size() > 1:
        _check_for_several_processes(model, device)
    return device


def _note_precision(config: Config, device: torch.device, done: dict[str, str]) -> None:
    if config.compute.fp16 and device.type == "cpu":
        done["precision"] = (
            "fp32: float16 was asked for, and this run is on the CPU, where it is not offered; "
            "bfloat16 is"
        )
        warnings.warn(f"accelerate(): {done['precision']}", stacklevel=3)


def _checked(model: nn.Module) -> nn.Module:
    """Return the module to work on. Raises InputError for one that cannot be accelerated."""
    # By name, since importing the class takes a second.
    if type(model).__name__ == "OptimizedModule":
        warnings.warn(
            (
                "accelerate(): torch.compile's wrapper is taken off the model; config.compiler "
                "says how it is compiled"
            ),
            stacklevel=3,
        )
        model = model._orig_mod  # type: ignore[assignment]
    if model in _done:
        raise InputError(
            "accelerate() was called twice on the same model. Call it once, and keep what it "
            "returned."
        )
    for name, module in model.named_modules():
        kind = type(module).__name__
        if (
            isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel))
            or "FSDP" in kind
            or "FullySharded" in kind
        ):
            where = f"its module {name}" if name else "the model"
            raise InputError(
                f"{where} is a {kind} already. Give accelerate() the plain module: it distributes "
                "the model itself."
            )
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise InputError(
                f"the model's parameter {name} has no values (it is on the meta device). Load or "
                "initialise it first."
            )
        if "DTensor" in (type(parameter).__name__, type(parameter.data).__name__):
            raise InputError(
                f"the model's parameter {name} is sharded (a DTensor). Give accelerate() the plain "
                "module."
            )
    return model


def _check_optimizers(model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
    own = {id(parameter) for parameter in model.parameters()}
    for optimizer in optimizers:
        if not any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
            raise InputError(
                f"the {type(optimizer).__name__} has none of the model's parameters. Make it from "
                "model.parameters() of the model that accelerate() gets."
            )


def _check_for_several_processes(model: nn.Module, device: torch.device) -> None:
    if any(map(nn.parameter.is_lazy, model.parameters())):
        raise InputError(
            "the model has lazy parameters, which several processes cannot share. Call it once on "
            "a batch before accelerate()."
        )
    if device.type == "cpu" and _has_synchronized_norm(model):
        raise InputError(
            "the model has SyncBatchNorm, which torch offers on GPUs only. On several processes of "
            "a CPU leave convert_sync_batchnorm() out: BatchNorm then counts each rank's own batch."
        )


def _has_synchronized_norm(model: nn.Module) -> bool:
    """Return whether the model has SyncBatchNorm.

    On one process SyncBatchNorm has to act as BatchNorm, so no process group is made for it.
    """
    return any(isinstance(module, nn.SyncBatchNorm) for module in model.modules())


def _lay_out(
    model: nn.Module,
    optimizers: list[torch.optim.Optimizer],
    config: Config,
    device: torch.device,
    done: dict[str, str],
) -> torch.memory_format:
    """Bring the model to the device; return the memory format that it is to have."""
    layout = memory_format(model, config.memory, device.type)
    model.to(device)
    if layout is torch.contiguous_format:
        return layout
    reason = layout_guard.reason_against(model)
    if any(isinstance(optimizer, torch.optim.LBFGS) for optimizer in optimizers):
        reason = "LBFGS flattens gradients"
    if reason:
        done["layout"] = f"contiguous: {reason}"
        if process_group.rank() == 0:
            layout_guard.announce(model, reason)
        return torch.contiguous_format
    done["layout"] = "channels_last"
    return layout


def _use_kernels(
    model: nn.Module,
    config: Config,
    device: torch.device,
    layout: torch.memory_format,
    done: dict[str, str],
) -> None:
    """Let own kernels carry out batch norms where they are used, or note why none are."""
    if not config.compute.kernels:
        return
    if reason := usage.reason_not_used(device):
        done["kernels"] = f"not used, {reason}"
        if device.type == "cuda" and kernels_enabled():
            fallback.announce(reason)
    elif layout is torch.channels_last and (fusion := fuse_batchnorm(model)).relu + fusion.add_relu:
        done["batch norm"] = str(fusion)


def _alone(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a model that was accelerated on one process; refuse to train so on one of several."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        raise InputError(
            f"the process group of {dist.get_world_size()} processes was made after accelerate(), "
            "so gradients would not be averaged. Call torch.distributed.init_process_group before "
            "accelerate()."
        )
    return call(*args, **kwargs)


def _add_attributes(model: nn.Module, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if not hasattr(model, name):  # a twin has no_sync, and Hugging Face models have a device
            object.__setattr__(model, name, value)


def techniques(model: nn.Module) -> dict[str, str]:
    """Return what accelerate() did to this model, by technique.

    The result is empty for the baseline and for other models.
    """
    return _done.get(model, {})


# The signature that help() and editors show.
accelerate.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [inspect.Parameter("model", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=nn.Module)]
    + [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
        for name in arguments.NAMES[1:]
    ],
    return_annotation=tuple[Any, ...],
)
