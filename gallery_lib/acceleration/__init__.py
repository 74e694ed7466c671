"""The whole backend in one call: `accelerate(model, loader, optimizer, scheduler, config)`.

Afterwards `model.device` exists. The loader yields batches on that device, divided among the ranks
of the run and reshuffled every epoch. Gradients are averaged over ranks by the time
`optimizer.step()` runs. Names of parameters and keys of `state_dict()` are the plain model's. `with
model.no_sync():` around the first batches of an accumulation spares their communication, whether
there are several processes or one.

Each part is usable alone: `memory`, `compiler.backend`, `comm.ddp`, `data.loading.device_loader`,
`optim.adoption`. Nothing global is patched. `arguments` sorts the arguments of the call and refuses
what cannot be accelerated. `techniques(model)` returns what was done.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gallery_lib import memory
from gallery_lib.acceleration import arguments
from gallery_lib.comm import process_group
from gallery_lib.comm.ddp import distribute
from gallery_lib.compiler import cuda_graphs, recompiles
from gallery_lib.compiler.backend import announce_first_call, compile_model
from gallery_lib.compiler.calls import Call, wrap_calls
from gallery_lib.config import Config
from gallery_lib.config.options import checked
from gallery_lib.config.switches import kernels_enabled
from gallery_lib.data.loading.device_loader import DeviceLoader
from gallery_lib.errors import InputError
from gallery_lib.kernels.runtime import usage
from gallery_lib.memory import convert_images, memory_format, takes_any_layout
from gallery_lib.optim.adoption import accelerate_optimizer
from gallery_lib.system import spinning
from gallery_lib.system.processes import tell
from gallery_lib.tune.choice import tune_at_first_step

_records: WeakKeyDictionary[nn.Module, dict[str, str]] = WeakKeyDictionary()
"""What accelerate() did to each model, by technique."""


@dataclass
class _State:
    """Parts of one training, as the steps of `accelerate()` find them and leave them."""

    config: Config
    model: nn.Module
    device: torch.device
    loaders: list[Any]
    optimizers: list[torch.optim.Optimizer]
    schedulers: list[Any]
    record: dict[str, str] = field(default_factory=dict)
    result: Any = None
    """The model, or its twin on several processes."""
    batches: dict[int, DeviceLoader] = field(default_factory=dict)
    """By the id of each loader, one that yields its batches on the device."""


def accelerate(*given: Any, **named: Any) -> Any:  # noqa: D417, see __signature__
    """Accelerate the parts of a training; return them in the order given, without the config.

    The model is placed, compiled and distributed, in place. Batches arrive on its device.
    Parts may be given in any order, since their types tell them apart. A model alone comes back as
    itself, several parts as a tuple.

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
        InputError: when the model is accelerated already, when a part is none of these or
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
    config, optimizers = checked(parts.config), parts.of_kind("optimizer")
    if config.compute.fp16 and config.compute.bf16:
        raise InputError(
            "config.compute.fp16 and config.compute.bf16 are both set, and a training runs under "
            "one autocast. Leave one of them out.",
            parameter="compute.bf16",
        )
    model = _plain_module(parts.model)
    arguments.check_optimizers(model, optimizers)
    device = _join_run(model)
    model.to(device)
    state = _State(
        config=config,
        model=model,
        device=device,
        loaders=parts.of_kind("loader"),
        optimizers=optimizers,
        schedulers=parts.of_kind("scheduler"),
    )
    for step in STEPS:
        state.record.update(step(state))
    _records[model] = _records[state.result] = state.record
    _say(state)
    for name, value in {"device": device, "no_sync": contextlib.nullcontext}.items():
        if not hasattr(state.result, name):  # a twin has no_sync, and Hugging Face models a device
            object.__setattr__(state.result, name, value)
    return parts.handed_back({**state.batches, id(parts.model): state.result})


def _plain_module(model: nn.Module) -> nn.Module:
    """Return the module to work on.

    Raises:
        InputError: for one that cannot be accelerated.
    """
    # By name, since importing the class takes a second.
    if type(model).__name__ == "OptimizedModule":
        warnings.warn(
            "accelerate(): torch.compile's wrapper is taken off the model; config.compiler says "
            "how it is compiled",
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
    """Join the run's process group, if there is one to join; return this process's device.

    Raises:
        InputError: for a model that several processes on such devices cannot train.
    """
    # torchrun also starts groups of one process. On a CPU SyncBatchNorm works only outside a group:
    # this model's, or that of another one of the process (a GAN's).
    alone_on_cpu = process_group.world_size() == 1 and not torch.cuda.is_available()
    if alone_on_cpu and any(map(arguments.has_synchronized_norm, (model, *_records))):
        process_group.leave()
    else:
        process_group.ensure_initialized()
    device = process_group.device()
    if process_group.world_size() > 1:
        arguments.check_for_several_processes(model, device)
    return device


def _use_allocator(state: _State) -> dict[str, str]:
    if not state.config.memory.allocator:
        return {}
    on_cpu = state.device.type == "cpu"
    return {
        "allocator": memory.keep_large_blocks() if on_cpu else "torch's caching allocator (CUDA)"
    }


def _share_cores(state: _State) -> dict[str, str]:
    shares = state.config.compute.share_cores and state.device.type == "cpu"
    return {"threads": spinning.watch()} if shares else {}


def _use_kernels(state: _State) -> dict[str, str]:
    """Note why own kernels are not used, where they are asked for and are not."""
    reason = usage.reason_not_used(state.device) if state.config.compute.kernels else None
    if not reason:
        return {}
    if state.device.type == "cuda" and kernels_enabled():
        usage.announce(reason)
    return {"kernels": f"not used, {reason}"}


def _let_cudnn_measure(state: _State) -> dict[str, str]:
    """Let cuDNN measure its algorithms, for the whole process, unless they are to be fixed ones."""
    cudnn = torch.backends.cudnn
    fixed = cudnn.deterministic or torch.are_deterministic_algorithms_enabled()
    if not state.config.compiler.enabled or state.device.type != "cuda" or fixed:
        return {}
    cudnn.benchmark = True
    return {"cuDNN": "measures its algorithms (torch.backends.cudnn.benchmark)"}


def _load(state: _State) -> dict[str, str]:
    options = state.config.loader
    state.batches = {
        id(loader): DeviceLoader(loader, state.device, torch.contiguous_format, options)
        for loader in state.loaders
    }
    niceness = [loader.niceness for loader in state.batches.values() if loader.niceness]
    return {"loader": f"processes that load data at niceness {niceness[-1]}"} if niceness else {}


def _check_schedules(state: _State) -> dict[str, str]:
    """Say where a scheduler was built for as many batches as the undivided loader has."""
    notes = [
        line
        for loader in state.loaders
        for scheduler in state.schedulers
        if (line := _too_long(scheduler, loader, state.batches[id(loader)]))
    ]
    if notes and process_group.rank() == 0:
        tell(f"accelerate(): {notes[0]}")
    return {"schedule": notes[0]} if notes else {}


def _too_long(scheduler: Any, loader: Any, divided: DeviceLoader) -> str | None:
    try:
        undivided, share = len(loader), len(divided)
    except TypeError:  # a stream, of which nobody knows the length
        return None
    names = ("total_steps", "T_max", "total_iters", "step_size")
    steps = next((getattr(scheduler, name) for name in names if hasattr(scheduler, name)), None)
    if not share < undivided or not steps or steps % undivided:
        return None
    passes = steps // undivided
    return (
        f"{type(scheduler).__name__} has {steps} steps, which is {passes} of the loader's passes "
        f"before it was divided. Each process takes {share} of {undivided} batches: stepped at "
        f"each one, the schedule ends at {share / undivided:.0%}. Build it with {passes * share} "
        "steps"
    )


def _adopt_optimizers(state: _State) -> dict[str, str]:
    compute = state.config.compute
    optimizers = state.optimizers if compute.optimizer else ()
    notes = [accelerate_optimizer(one, scaled=compute.fp16) for one in optimizers]
    return {"optimizer": notes[-1]} if notes else {}


def _compile(state: _State) -> dict[str, str]:
    """Set up compilation or tuning at the first call of the model, and the layout inside it."""
    model, config, device, record = state.model, state.config, state.device, state.record
    channels_last = memory_format(model, config.memory, device.type) is torch.channels_last
    if config.tune:
        tune_at_first_step(model, config, device, record)
        return {}
    if config.compiler.enabled:
        record["compiler"] = compile_model(
            model, config.compiler, device, channels_last=channels_last
        )
        announce_first_call(model, record)
        return {"layout": "channels_last"} if channels_last else {}
    if config.memory.layout != "channels_last":
        return {}
    if takes_any_layout(model):
        convert_images(model)
        return {"layout": "channels_last"}
    if process_group.rank() == 0:
        tell(
            f"config.memory.layout: {type(model).__name__} stays contiguous, since code of "
            "one's own may look at strides. Compiled, it has the layout inside its graph."
        )
    return {"layout": "contiguous: uncompiled code of one's own may look at strides"}


def _check_precision(state: _State) -> dict[str, str]:
    """Note a declared precision that this device lacks; check another one at the first step.

    `compute.fp16` and `compute.bf16` of the config declare autocast of a dtype. The check adds
    `precision` to the record, where the training does not run as declared.
    """
    compute, device = state.config.compute, state.device.type
    if compute.fp16 and device == "cpu":
        text = (
            "fp32: float16 was asked for, and this run is on the CPU, where it is not offered; "
            "bfloat16 is"
        )
        warnings.warn(f"accelerate(): {text}", stacklevel=_level_of_user())
        return {"precision": text}
    if compute.fp16 or compute.bf16:
        _check_first_step(state, torch.float16 if compute.fp16 else torch.bfloat16)
    return {}


def _distribute(state: _State) -> dict[str, str]:
    """Make the model's twin on several processes; on one the model stays itself."""
    if process_group.world_size() > 1:
        state.result = distribute(state.model, state.device, state.config.comm)
    else:
        wrap_calls(state.model, _call_alone)
        state.result = state.model
    return {}


STEPS: tuple[Callable[[_State], dict[str, str]], ...] = (
    _use_allocator,
    _share_cores,
    _use_kernels,
    _let_cudnn_measure,
    _load,
    _check_schedules,
    _adopt_optimizers,
    _compile,
    _check_precision,
    _distribute,
)
"""What a call does, in order. A step returns notes for `techniques()`."""


def _say(state: _State) -> None:
    """Say in one line what was done, on rank 0."""
    clause_end = r"; | \(|\.(?:\s|$)"  # dots in versions and names of modules end no clause
    notes = [
        f"{name}: {re.split(clause_end, note)[0]}"
        for name, note in state.record.items()
        if name != "schedule"  # which was said
    ]
    if notes and process_group.rank() == 0:
        kind = type(state.model).__name__
        tell(f"accelerate(): {kind} on {state.device}; {'; '.join(notes)}")


def _call_alone(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a model that was accelerated on one process; refuse to train so on one of several."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        raise InputError(
            f"the process group of {dist.get_world_size()} processes was made after accelerate(), "
            "so gradients would not be averaged. Call torch.distributed.init_process_group before "
            "accelerate()."
        )
    return call(*args, **kwargs)


def techniques(model: nn.Module) -> dict[str, str]:
    """Return what accelerate() did to this model, by technique, and what became of it.

    The result is empty for the baseline and for other models.
    """
    record = _records.get(model, {})
    if "compiler" in record and (again := recompiles.summary()):
        record["recompilations"] = again
    if "CUDA graphs" in record.get("compiler", "") and cuda_graphs.failure:
        record["CUDA graphs"] = f"none: {cuda_graphs.failure}"
    return record


# The signature that help() and editors show.
accelerate.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [inspect.Parameter("model", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=nn.Module)]
    + [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
        for name in arguments.NAMES[1:]
    ],
    return_annotation=Any,
)


# --------------------------------------------------------------------------------------------------
# Precision that the config declares, held against that of the first step.
#
# Autocast stays in the user's loop, so the config can only say what is there. Where the two differ
# the training runs in another precision than was meant, and that is said once.


_BETWEEN = ("gallery_lib", "torch")
"""Packages whose code lies between the user's call of a model and its check."""


def _check_first_step(state: _State, dtype: torch.dtype) -> None:
    model, device, record, waiting = state.model, state.device.type, state.record, True
    name = "fp16" if dtype is torch.float16 else "bf16"

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
