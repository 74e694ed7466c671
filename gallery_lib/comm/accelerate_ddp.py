"""Change how a DistributedDataParallel averages gradients: `accelerate_ddp(model, options)`.

The model object stays. `preconditions.py` says what a model and its options must be, `strategy.py`
switches the strategy. A communication hook of the user's takes precedence for good.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch import nn

from gallery_lib.comm import preconditions
from gallery_lib.comm.optimizer_in_backward import EarlySteps
from gallery_lib.comm.rebuild import DDP
from gallery_lib.comm.strategy import gradient_reducer, needs_hook, use_strategy, watched
from gallery_lib.comm.watch import DISTRIBUTION, inside, watch_of
from gallery_lib.config import Comm
from gallery_lib.errors import InputError

M = TypeVar("M", bound=nn.Module)


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
            process group, or that has a communication hook of its own; for an optimizer whose step
            cannot be divided; for options that do not go together or differ between ranks.

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
    options = options or Comm()
    ddp = inside(model)
    _check(type(model).__name__, ddp, options, optimizer)
    early_steps = None
    if optimizer is not None:
        preconditions.check_early_steps(ddp, options, optimizer)
        names = {id(parameter): name for name, parameter in ddp.module.named_parameters()}
        early_steps = EarlySteps(optimizer, names)
    try:
        use_strategy(ddp, options, early_steps)
    except InputError:
        if early_steps is not None:
            early_steps.close()
        raise
    watched(ddp).before_forward = None if early_steps is None else early_steps.before_forward
    if ddp is not model:
        # a DDP that is made anew later takes them too
        getattr(type(model), DISTRIBUTION).options = options
    return model


def _check(kind: str, ddp: Any, options: Comm, optimizer: torch.optim.Optimizer | None) -> None:
    """Raise InputError unless `ddp` can have this strategy. A collective call."""
    if not isinstance(ddp, DDP):
        raise InputError(
            f"accelerate_ddp() takes a DistributedDataParallel, and got a {kind}. "
            "Wrap the model first.",
            parameter="model",
        )
    hooked = needs_hook(options) or optimizer is not None
    if reason := preconditions.obstacle(ddp, hooked):
        raise InputError(
            f"this model cannot be accelerated in this way: {reason}.", parameter="model"
        )
    preconditions.check_compatible(options)
    preconditions.check_same_on_all_ranks(ddp, options, "accelerate_ddp()", optimizer)


def step_in_backward(model: nn.Module) -> AbstractContextManager[None]:
    """Context: the backward pass inside takes the optimizer's step, bucket by bucket.

    A bucket's parameters are updated while other gradients are still being averaged.

    The block promises that `optimizer.step()` follows with the gradients of exactly this backward
    pass. A closure, clipping, a GradScaler, another backward pass, a changed learning rate or a
    missing step breaks the promise. Then `optimizer.step()` or the next block raises RunFailed or
    InputError. Backward passes outside such blocks take no step, for instance those of other
    networks through this one.

    Raises:
        InputError: where `accelerate_ddp(model, …, optimizer=…)` was not called.

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
    watch = watch_of(model)
    if watch is None or watch.reducer is None or watch.reducer.early_steps is None:
        raise InputError(
            "step_in_backward() needs to know the optimizer. "
            "Call accelerate_ddp(model, options, optimizer=optimizer) first.",
            parameter="optimizer",
        )
    return watch.reducer.early_steps.block()


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
    if reducer is None:
        if state:
            raise InputError(
                "there is communication state to load, and the model communicates as DDP does. "
                "accelerate_ddp() it first.",
                parameter="model",
            )
        return
    reducer.load_state_dict(state)
