"""Change how a DistributedDataParallel averages gradients: `accelerate_ddp(model, options)`.

The model object stays; only its C++ reducer is rebuilt (`torch_ddp.py`). Options that DDP itself
does not have need a communication hook as well (`reducer.py`).
"""

from __future__ import annotations

import dataclasses
import weakref
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from gallery_lib.comm import torch_ddp
from gallery_lib.comm.optimizer_in_backward import EarlySteps
from gallery_lib.comm.reducer import GradientReducer
from gallery_lib.comm.torch_ddp import DDP, DISTRIBUTION, inside
from gallery_lib.config import Comm
from gallery_lib.config.options import checked
from gallery_lib.errors import InputError

M = TypeVar("M", bound=nn.Module)
SETTLING_STEPS = 2
"""Steps after a change that no measurement counts: DDP orders its buckets anew."""
_reducers: weakref.WeakKeyDictionary[DDP, GradientReducer] = weakref.WeakKeyDictionary()


def accelerate_ddp(
    model: M, options: Comm | None = None, *, optimizer: torch.optim.Optimizer | None = None
) -> M:
    """Have `model` average its gradients as `options` say, and return it. A collective call.

    Call it again with other options between two steps to change them. What error feedback has kept
    is dropped then.

    Args:
        model: a DistributedDataParallel, or what accelerate() returned for several processes.
        options: how gradients are averaged; default: `Comm()`.
        optimizer: the optimizer whose steps may be taken in the backward pass, bucket by bucket;
            see `step_in_backward`.

    Returns:
        The same model.

    Raises:
        InputError: for a model that is no DistributedDataParallel, that is not in the default
            process group, or that has sparse gradients or a communication hook of its own; for an
            optimizer whose step cannot be divided; for options that differ between ranks.

    Example:
        >>> import torch
        >>> from gallery_lib.comm.accelerate_ddp import accelerate_ddp
        >>> from gallery_lib.config import Comm
        >>> torch.distributed.init_process_group(
        ...     "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
        ... )
        >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
        >>> model = accelerate_ddp(model, Comm(wire="bf16", streams=2))
        >>> model(torch.ones(8, 4)).mean().backward()
    """
    options = checked(options or Comm())
    ddp = inside(model)
    if not isinstance(ddp, DDP):
        raise InputError(
            f"accelerate_ddp() takes a DistributedDataParallel, and got a {type(model).__name__}. "
            "Wrap the model first.",
            parameter="model",
        )
    check_possible(ddp, options, optimizer)
    early_steps = None
    if optimizer is not None:
        _check_early_steps(ddp, options, optimizer)
        early_steps = EarlySteps(optimizer)
    use_strategy(ddp, options, early_steps)
    if ddp is not model:
        # a DDP that is made anew later takes them too
        getattr(type(model), DISTRIBUTION).options = options
    return model


def step_in_backward(model: nn.Module) -> AbstractContextManager[None]:
    """Context: the backward pass inside takes the optimizer's step, bucket by bucket.

    A bucket's parameters are updated while other gradients are still being averaged, so a
    GradScaler or clipping comes too late, and `optimizer.step()` refuses it. That call does what is
    left, for instance parameters of other models. Backward passes outside such blocks take no step,
    for instance those of other networks through this one.

    Raises:
        InputError: where `accelerate_ddp(model, …, optimizer=…)` was not called, and for a block
            without a backward pass.
        RunFailed: for a backward pass that ends with an error after a part of the step.

    Example:
        >>> import torch
        >>> from gallery_lib.comm.accelerate_ddp import accelerate_ddp, step_in_backward
        >>> torch.distributed.init_process_group(
        ...     "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
        ... )
        >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> model = accelerate_ddp(model, optimizer=optimizer)
        >>> loss = model(torch.ones(8, 4)).mean()
        >>> with step_in_backward(model):
        ...     loss.backward()
        >>> optimizer.step()  # does what is left
    """
    reducer = gradient_reducer(model)
    if reducer is None or reducer.early_steps is None:
        raise InputError(
            "step_in_backward() needs to know the optimizer. "
            "Call accelerate_ddp(model, options, optimizer=optimizer) first.",
            parameter="optimizer",
        )
    return reducer.early_steps.block()


def comm_state_dict(model: nn.Module) -> dict[str, Any]:
    """Return this rank's error-feedback state, for this rank's part of a checkpoint.

    It is kept beside the model's own state dict.
    """
    reducer = gradient_reducer(model)
    return reducer.state_dict() if reducer is not None else {}


def load_comm_state_dict(model: nn.Module, state: dict[str, Any]) -> None:
    """Load the state that `comm_state_dict` returned.

    The rank, the world size and the options must be those of the saved state.

    Raises:
        InputError: for state to load into a model that communicates as plain DDP.
    """
    reducer = gradient_reducer(model)
    if reducer is not None:
        reducer.load_state_dict(state)
    elif state:
        raise InputError(
            "there is communication state to load, and the model communicates as DDP does. "
            "accelerate_ddp() it first.",
            parameter="model",
        )


# --------------------------------------------------------------------------------------------------
# Preconditions of a strategy: of the model, of the options, and of both on all ranks.


def obstacle(model: DDP, hooked: bool = True, hierarchical: bool = False) -> str:
    """Return why the model has to stay as it is, or ''; `hooked`: a hook of ours is wanted."""
    if reason := torch_ddp.own_averaging(model):
        return reason
    everyone = list(range(dist.get_world_size()))
    if hooked and dist.get_process_group_ranks(model.process_group) != everyone:
        return "it is not in the default process group of all ranks"
    if hooked and any(getattr(layer, "sparse", False) is True for layer in model.modules()):
        return "it has sparse gradients, which DDP averages by itself"
    if hierarchical and model.device.type == "cuda":
        return "NCCL itself adds up within a host first (hierarchical)"
    return ""


def _check_early_steps(model: DDP, options: Comm, optimizer: torch.optim.Optimizer) -> None:
    """Raise InputError where the optimizer's step cannot go into the backward pass.

    A gradient may not be final by then, that is, not the one that `optimizer.step()` would see. Or
    the optimizer has none of the model's parameters.
    """
    own = {id(parameter): parameter for parameter in model.module.parameters()}
    no_gradient = "with which it is known at the end alone which parameters have a gradient"
    found = {
        f"together with find_unused_parameters, {no_gradient}": model.find_unused_parameters
        or options.find_unused_parameters,
        f"together with static_graph, {no_gradient}": model.static_graph,
        "of complex parameters, and of those that are not contiguous": any(
            p.is_complex() or not p.is_contiguous() for p in own.values()
        ),
        "since none of the optimizer's parameters is one of the model's": not any(
            id(p) in own for group in optimizer.param_groups for p in group["params"]
        ),
    }
    for reason in (reason for reason, holds in found.items() if holds):
        raise InputError(
            f"the optimizer's step cannot go into the backward pass {reason}.",
            parameter="optimizer",
        )


def check_possible(
    model: DDP, options: Comm, optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Raise InputError on every rank if the model or the ranks do not allow it. A collective call.

    Ranks with different options would wait for each other.
    """
    hooked = options.tune or _needs_hook(options) or optimizer is not None
    if reason := obstacle(model, hooked, options.hierarchical):
        raise InputError(
            f"this model cannot be accelerated in this way: {reason}.", parameter="model"
        )
    mine = {
        **dataclasses.asdict(options),
        "optimizer": None if optimizer is None else type(optimizer).__name__,
    }
    everyone: list[dict[str, Any]] = [{}] * dist.get_world_size(model.process_group)
    dist.all_gather_object(everyone, mine, group=model.process_group)
    for rank, theirs in enumerate(everyone):
        for name, value in theirs.items():
            if value != everyone[0][name]:
                raise InputError(
                    f"ranks ask for different options: {name}={everyone[0][name]!r} on "
                    f"rank 0, and {name}={value!r} on rank {rank}. Set the same on all.",
                    parameter=name,
                )


# --------------------------------------------------------------------------------------------------
# Switch the strategy of a model.


def _needs_hook(options: Comm) -> bool:
    return options.hierarchical or options.streams > 1 or options.wire != "exact"


def use_strategy(model: DDP, options: Comm, early_steps: EarlySteps | None = None) -> None:
    """Have `model` average gradients as `options` say. A collective call between two steps.

    The options must suit the model.
    """
    if (reducer := _reducers.get(model)) is not None:
        reducer.close()
        del _reducers[model]
    torch_ddp.rebuild(model, options)
    if _needs_hook(options) or early_steps is not None:
        reducer = GradientReducer(model, options, early_steps)
        torch_ddp.use_hook(model, reducer.take)
        _reducers[model] = reducer


def gradient_reducer(model: nn.Module) -> GradientReducer | None:
    """Return our communication hook of `model`; None where DDP averages by itself."""
    ddp = inside(model)
    return None if ddp is None else _reducers.get(ddp)
