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
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn

from gallery_lib.acceleration import arguments, precision
from gallery_lib.comm import process_group
from gallery_lib.comm.ddp import distribute
from gallery_lib.compiler.backend import compile_model
from gallery_lib.compiler.calls import wrap_calls
from gallery_lib.compiler.notices import announce_first_call
from gallery_lib.config import Config
from gallery_lib.config.switches import kernels_enabled
from gallery_lib.console.progress import note
from gallery_lib.data.loading.device_loader import DeviceLoader
from gallery_lib.errors import InputError
from gallery_lib.kernels.runtime import usage
from gallery_lib.memory import allocator
from gallery_lib.memory.layout import convert_images, memory_format, takes_any_layout
from gallery_lib.optim.adoption import accelerate_optimizer
from gallery_lib.tune.candidates import Candidate
from gallery_lib.tune.first_batch import tune_at_first_step

_records: WeakKeyDictionary[nn.Module, dict[str, str]] = WeakKeyDictionary()
"""What accelerate() did to each model, by technique."""


def accelerate(*given: Any, **named: Any) -> tuple[Any, ...]:  # noqa: D417, see __signature__
    """Accelerate the parts of a training; return them in the order given, without the config.

    The model is placed, compiled and distributed, in place. Batches arrive on its device.
    Parts may be given in any order, since their types tell them apart.

    Args:
        model: any module, on any device. With several processes its twin comes back, whose calls
            average gradients; `twin.module` is the model itself.
        loader: a DataLoader whose batch size is per process, or another iterable of batches.
            Several may be given.
        optimizer: one of torch.optim's classes takes the form that is fastest on the device, in
            place. Others stay as they are. Several may be given.
        scheduler: comes back as it is.
        config: what to do; default: `Config()`.

    Raises:
        InputError: when the model has been through here before, when a part is none of these or
            cannot be used, or when the compiler lacks something.

    Example:
        >>> import torch
        >>> from gallery_lib import accelerate
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> model, loader, optimizer = accelerate(model, [torch.ones(8, 4)], optimizer)
        >>> for batch in loader:
        ...     model(batch).mean().backward()
        ...     optimizer.step()
    """
    parts = arguments.sort(given, named)
    config, optimizers = parts.config, parts.of_kind("optimizer")
    precision.check(config)
    model = _plain_module(parts.model)
    arguments.check_optimizers(model, optimizers)
    device = _join_run(model)
    record: dict[str, str] = {}
    model.to(device)
    channels_last = memory_format(model, config.memory, device.type) is torch.channels_last
    _use_allocator(config, device, record)
    _use_kernels(config, device, record)
    _let_cudnn_measure(config, device, record)
    batches = _on_device(parts.of_kind("loader"), config, device, record)
    for optimizer in optimizers if config.compute.optimizer else ():
        record["optimizer"] = accelerate_optimizer(optimizer, scaled=config.compute.fp16)
    result: Any = model
    _compile(model, config, device, channels_last, record)
    precision.note(model, config, device, record)
    result = _distribute(model, config, device)
    _records[model] = _records[result] = record
    _add_attributes(result, {"device": device, "no_sync": contextlib.nullcontext})
    return parts.handed_back({**batches, id(parts.model): result})


def _plain_module(model: nn.Module) -> nn.Module:
    """Return the module to work on.

    Raises:
        InputError: for one that cannot be accelerated.
    """
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
    if model in _records:
        raise InputError(
            "accelerate() was called twice on the same model. Call it once, and keep what it "
            "returned.",
            parameter="model",
        )
    arguments.check_model(model)
    return model


def _join_run(model: nn.Module) -> torch.device:
    """Join the run's process group, if there is one to join; return this process's device."""
    if process_group.world_size() > 1 or not arguments.has_synchronized_norm(model):
        process_group.ensure_initialized()
    device = process_group.device()
    if process_group.world_size() > 1:
        arguments.check_for_several_processes(model, device)
    return device


def _use_allocator(config: Config, device: torch.device, record: dict[str, str]) -> None:
    if config.memory.allocator:
        record["allocator"] = (
            allocator.apply() if device.type == "cpu" else "torch's caching allocator (CUDA)"
        )


def _use_kernels(config: Config, device: torch.device, record: dict[str, str]) -> None:
    """Note why own kernels are not used, where they are asked for and are not."""
    if config.compute.kernels and (reason := usage.reason_not_used(device)):
        record["kernels"] = f"not used, {reason}"
        if device.type == "cuda" and kernels_enabled():
            usage.announce(reason)


def _let_cudnn_measure(config: Config, device: torch.device, record: dict[str, str]) -> None:
    """Let cuDNN measure its algorithms, for the whole process, unless they are to be fixed ones."""
    cudnn = torch.backends.cudnn
    fixed = cudnn.deterministic or torch.are_deterministic_algorithms_enabled()
    if config.compute.cudnn_benchmark and device.type == "cuda" and not fixed:
        cudnn.benchmark = True
        record["cuDNN"] = "measures its algorithms (torch.backends.cudnn.benchmark)"


def _on_device(
    loaders: list[Any],
    config: Config,
    device: torch.device,
    record: dict[str, str],
) -> dict[int, DeviceLoader]:
    """Return, by the id of each loader, one that yields its batches on the device."""
    batches = {
        id(loader): DeviceLoader(loader, device, torch.contiguous_format, config.loader)
        for loader in loaders
    }
    for niceness in {loader.niceness for loader in batches.values() if loader.niceness}:
        record["loader"] = f"processes that load data at niceness {niceness}"
    return batches


def _compile(
    model: nn.Module,
    config: Config,
    device: torch.device,
    channels_last: bool,
    record: dict[str, str],
) -> None:
    """Set up compilation or tuning at the first call of `model`, and the layout inside it."""

    def follow(candidate: Candidate) -> None:
        """Note the layout and the compiler that tuning has chosen for the model."""
        record.update({"layout": candidate.layout, "compiler": candidate.backend or "none: eager"})

    if config.tune.enabled:
        tune_at_first_step(model, config, device, record, follow)
        return
    if config.compiler.enabled:
        record["compiler"] = compile_model(
            model, config.compiler, device, channels_last=channels_last
        )
        announce_first_call(model, record)
        if channels_last:
            record["layout"] = "channels_last"
    elif config.memory.layout == "channels_last" and takes_any_layout(model):
        convert_images(model)
        record["layout"] = "channels_last"
    elif config.memory.layout == "channels_last":
        record["layout"] = "contiguous: uncompiled code of one's own may look at strides"
        if process_group.rank() == 0:
            note(
                f"config.memory.layout: {type(model).__name__} stays contiguous, since code of "
                "one's own may look at strides. Compiled, it has the layout inside its graph."
            )


def _distribute(model: nn.Module, config: Config, device: torch.device) -> Any:
    """Return the model's twin on several processes; on one, the model itself."""
    if process_group.world_size() > 1:
        return distribute(model, device, config.comm)
    wrap_calls(model, _call_alone)
    return model


def _call_alone(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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
    return _records.get(model, {})


# The signature that help() and editors show.
accelerate.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [inspect.Parameter("model", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=nn.Module)]
    + [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
        for name in arguments.NAMES[1:]
    ],
    return_annotation=tuple[Any, ...],
)
