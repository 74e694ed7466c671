"""Change how a DistributedDataParallel averages gradients: `accelerate_ddp(model, options)`.

The model object stays. Only its C++ reducer is rebuilt (`rebuild.py`). Options that DDP itself does
not have need a communication hook as well (`reducer.py`). A communication hook of the user's takes
precedence for good, whether it is registered before or after.
"""

from __future__ import annotations

import dataclasses
import sys
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from gallery_lib.comm.optimizer_in_backward import EarlySteps
from gallery_lib.comm.rebuild import DDP
from gallery_lib.comm.reducer import GradientReducer
from gallery_lib.comm.watch import DISTRIBUTION, Watch, inside, watch_of
from gallery_lib.config import Comm
from gallery_lib.errors import InputError

M = TypeVar("M", bound=nn.Module)


def needs_hook(options: Comm) -> bool:
    """Return whether `options` need a communication hook, beyond what DDP's constructor takes."""
    return (
        options.hierarchical
        or options.streams > 1
        or options.wire != "exact"
        or options.non_finite != "ignore"
    )


def _joined(model: DDP) -> Callable[[], bool]:
    """Return a function that tells whether DDP's join context is active.

    In that context ranks without batches stand by. The function does not keep the model alive.
    """
    known = weakref.ref(model)

    def joined() -> bool:
        there = known()
        return there is not None and there._join_config.enable

    return joined


def obstacle(model: DDP, hooked: bool = True) -> str:
    """Return why the model has to stay as it is, or ''.

    Args:
        model: the DistributedDataParallel to look at.
        hooked: whether a communication hook is wanted.
    """
    if getattr(model, "reducer", None) is None or model.logger is None:
        return (
            "it averages no gradients in buckets (delay_all_reduce_named_params "
            "names all parameters)"
        )
    if model._use_python_reducer:
        return "torch compiles its averaging (torch._dynamo.config.optimize_ddp='python_reducer')"
    if model.mixed_precision is not None:
        return "it has DDP's mixed_precision, which autocast does as well"
    if model._comm_hooks or model._get_ddp_logging_data().get("comm_hook"):  # type: ignore[no-untyped-call]
        return "it has a communication hook of its own (register_comm_hook)"
    if hooked and dist.get_process_group_ranks(model.process_group) != list(
        range(dist.get_world_size())
    ):
        return "it is not in the default process group of all ranks"
    return ""


def _check_early_steps(model: DDP, options: Comm) -> None:
    """Raise InputError where a step in the backward pass may use a gradient that is not final.

    The final gradient is the one that `optimizer.step()` would see.
    """
    reasons = {
        (
            "find_unused_parameters: only at the end is it known which parameters have a gradient"
        ): model.find_unused_parameters or options.find_unused_parameters,
        "static_graph, with which DDP leaves unused parameters out": (
            options.static_graph or model.static_graph
        ),
        (
            f"non_finite={options.non_finite}: "
            "only at the end is it known whether the step is taken"
        ): options.non_finite != "ignore",
    }
    if reason := next((reason for reason, holds in reasons.items() if holds), None):
        raise InputError(
            f"the optimizer's step cannot go into the backward pass together with {reason}. "
            "Leave one of both out."
        )


def say(text: str) -> None:
    """Print `text` to standard error on rank 0."""
    if dist.get_rank() == 0:
        print(text, file=sys.stderr, flush=True)


def check_same_on_all_ranks(
    model: DDP, options: Comm, what: str, optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Raise InputError on every rank if ranks ask for different options. A collective call.

    Ranks with different options would wait for each other.
    """
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
                    f"{what}: ranks ask for different options: {name}={everyone[0][name]!r} on "
                    f"rank 0, and {name}={value!r} on rank {rank}. Set the same on all."
                )


def watched(model: DDP) -> Watch:
    """Return the watch over `model`, and create it where there is none.

    From then on the watch notices a communication hook that the user registers.
    """
    watch = watch_of(model)
    if watch is None:
        watch = Watch(model)
        known = weakref.ref(model)
        watch.before_own_hook = lambda: _give_way(known())
    return watch


def _give_way(model: DDP | None) -> None:
    """Leave averaging to a communication hook that the user is about to register."""
    watch = watch_of(model)
    if model is None or watch is None or (watch.reducer is None and watch.before_forward is None):
        return
    stop_watching_steps(model)
    use_way(model, Comm())
    say(
        f"{type(model.module).__name__}: gradients are averaged by the model's own communication "
        "hook (register_comm_hook) from now on, not as config.comm says."
    )


def stop_watching_steps(model: DDP) -> None:
    """End a tuner's turns, if there is one; the model keeps its present strategy."""
    if (watch := watch_of(model)) is not None:
        watch.before_forward = None


def use_way(model: DDP, options: Comm, early_steps: EarlySteps | None = None) -> None:
    """Have `model` average gradients as `options` say. A collective call between two steps.

    The options must be known to go together and to suit the model.
    """
    watch = watched(model)
    if watch.reducer is not None:
        watch.reducer.close()
        watch.reducer = None
    watch.rebuild(options)
    if not needs_hook(options) and early_steps is None:
        return
    reducer = GradientReducer(model.module, options, model.device, _joined(model), early_steps)
    dist._register_comm_hook(model.reducer, None, reducer.take)
    watch.reducer = reducer
    reducer.end_with(model)


def accelerate_ddp(
    model: M, options: Comm | None = None, *, optimizer: torch.optim.Optimizer | None = None
) -> M:
    """Have `model` average its gradients as `options` say, and return it. A collective call.

    `options` default to `Comm()`. With `optimizer`, steps may be taken in the backward pass, bucket
    by bucket: see `step_in_backward`.

    Call it again with other options between two steps to change them. What error feedback has kept
    is dropped then.

        accelerate_ddp(model, Comm(wire="bf16"))

    Raises InputError for:

    - a model that is no DistributedDataParallel, and none that accelerate() returned
    - a model that is not in the default process group, or has a communication hook of its own
    - an optimizer whose step cannot be divided
    - options that do not go together, or that differ between ranks
    """
    options = options or Comm()
    ddp = inside(model)
    if not isinstance(ddp, DDP):
        raise InputError(
            f"accelerate_ddp() takes a DistributedDataParallel, and got a {type(model).__name__}. "
            "Wrap the model first."
        )
    hooked = needs_hook(options) or optimizer is not None
    if reason := obstacle(ddp, hooked):
        raise InputError(f"this model cannot be accelerated in this way: {reason}.")
    if options.wire == "powersgd" and (options.hierarchical or options.streams > 1):
        raise InputError(
            "wire=powersgd does not go together with hierarchical or several streams. "
            "Leave these off."
        )
    check_same_on_all_ranks(ddp, options, "accelerate_ddp()", optimizer)
    early_steps = None
    if optimizer is not None:
        _check_early_steps(ddp, options)
        names = {id(parameter): name for name, parameter in ddp.module.named_parameters()}
        if not any(
            id(parameter) in names
            for group in optimizer.param_groups
            for parameter in group["params"]
        ):
            raise InputError(
                "none of the optimizer's parameters is one of the model's. "
                "Give the optimizer of this model, or none."
            )
        early_steps = EarlySteps(optimizer, names)
    try:
        use_way(ddp, options, early_steps)
    except InputError:
        if early_steps is not None:
            early_steps.close()
        raise
    watched(ddp).before_forward = None if early_steps is None else early_steps.before_forward
    if ddp is not model:
        # a DDP that is made anew later takes them too
        getattr(type(model), DISTRIBUTION).options = options
    return model


def step_in_backward(model: nn.Module) -> AbstractContextManager[None]:
    """Context: the backward pass inside takes the optimizer's step, bucket by bucket.

    A bucket's parameters are updated while other gradients are still being averaged.

        accelerate_ddp(model, options, optimizer=optimizer)
        for batch in loader:
            optimizer.zero_grad()
            loss = model(batch).mean()
            with step_in_backward(model):
                loss.backward()
            optimizer.step()  # does what is left

    The block promises that `optimizer.step()` follows with the gradients of exactly this backward
    pass. A closure, clipping, a GradScaler, another backward pass, a changed learning rate or a
    missing step breaks the promise. Then `optimizer.step()` or the next block raises RunFailed or
    InputError. Backward passes outside such blocks take no step, for instance those of other
    networks through this one.

    Raises InputError where `accelerate_ddp(model, …, optimizer=…)` was not called.
    """
    watch = watch_of(model)
    if watch is None or watch.reducer is None or watch.reducer.early_steps is None:
        raise InputError(
            "step_in_backward() needs to know the optimizer. "
            "Call accelerate_ddp(model, options, optimizer=optimizer) first."
        )
    return watch.reducer.early_steps.block()


def gradient_reducer(model: nn.Module) -> GradientReducer | None:
    """Return our communication hook of `model`; None where DDP averages by itself."""
    watch = watch_of(model)
    return None if watch is None else watch.reducer


def comm_state_dict(model: nn.Module) -> dict[str, Any]:
    """Return this rank's error-feedback state, for this rank's part of a checkpoint.

    It is kept beside the model's own state dict.
    """
    reducer = gradient_reducer(model)
    return reducer.state_dict() if reducer is not None else {}


def load_comm_state_dict(model: nn.Module, state: dict[str, Any]) -> None:
    """Load the state that `comm_state_dict` returned.

    The rank, the world size and the options must be those of the saved state. Raises InputError for
    state to load into a model that communicates as plain DDP.
    """
    reducer = gradient_reducer(model)
    if reducer is None:
        if state:
            raise InputError(
                "there is communication state to load, and the model communicates as DDP does. "
                "accelerate_ddp() it first."
            )
        return
    reducer.load_state_dict(state)
