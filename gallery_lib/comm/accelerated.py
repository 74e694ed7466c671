"""`accelerate_ddp(model, options)`: another way for a DistributedDataParallel to average gradients."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gallery_lib.comm.early_steps import EarlySteps
from gallery_lib.comm.reducer import DDP_BUCKET_MB, GradientReducer
from gallery_lib.config import Comm
from gallery_lib.errors import InputError

DDP = nn.parallel.DistributedDataParallel
_REDUCER = "gallery_reducer"
_AS_MADE = "gallery_as_made"
"""What the user made the model with: `gradient_as_bucket_view` and `static_graph`, which a way before may have changed."""


def needs_hook(options: Comm) -> bool:
    """Whether `options` ask for more than DDP can be told when it is made."""
    return options.hierarchical or options.streams > 1 or options.wire != "exact" or options.non_finite != "ignore"


def _bucket_sizes(options: Comm) -> dict[str, Any]:
    if options.first_bucket_mb is None:
        return {"bucket_cap_mb": options.bucket_mb}
    if "bucket_cap_mb_list" not in inspect.signature(DDP.__init__).parameters:
        raise InputError(f"first_bucket_mb needs a newer torch than {torch.__version__}, whose DDP takes sizes one by one. Leave it out.")
    return {"bucket_cap_mb_list": [options.first_bucket_mb, options.bucket_mb or DDP_BUCKET_MB]}  # the last is that of all others


def _as_made(model: nn.parallel.DistributedDataParallel) -> tuple[bool, bool]:
    return getattr(model, _AS_MADE, (model.gradient_as_bucket_view, model.static_graph))


def _arguments(model: nn.parallel.DistributedDataParallel, options: Comm) -> dict[str, Any]:
    """What to make `model` anew with: as it is, and as the options say."""
    views, static_graph = _as_made(model)
    chosen = {
        "device_ids": model.device_ids,
        "output_device": model.output_device,
        "dim": model.dim,
        "process_group": model.process_group,
        "find_unused_parameters": model.find_unused_parameters,
        **_bucket_sizes(options),
        "gradient_as_bucket_view": options.bucket_views or views,
        "static_graph": options.static_graph or static_graph,
        "init_sync": False,  # done when it was made the first time
    }
    if not getattr(model, "forward_sync_buffers", getattr(model, "broadcast_buffers", True)):
        known = inspect.signature(DDP.__init__).parameters
        chosen["forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"] = False
    return chosen


def _joined(model: nn.parallel.DistributedDataParallel) -> Callable[[], bool]:
    """Whether ranks without batches may stand by; it does not keep the model alive."""
    known = weakref.ref(model)

    def joined() -> bool:
        there = known()
        return there is not None and there._join_config.enable

    return joined


def obstacle(model: nn.parallel.DistributedDataParallel, hooked: bool = True) -> str:
    """Why the model has to stay as it is, or ''; `hooked`: when a communication hook is wanted."""
    if getattr(model, _REDUCER, None) is None and model._comm_hooks:
        return "it has a communication hook of its own (register_comm_hook)"
    if model.mixed_precision is not None:
        return "it has DDP's mixed_precision, which autocast does as well"
    if hooked and dist.get_process_group_ranks(model.process_group) != list(range(dist.get_world_size())):
        return "it is not in the default process group of all ranks"
    return ""


def _check_early_steps(model: nn.parallel.DistributedDataParallel, options: Comm) -> None:
    """Raises InputError where a parameter's step could be taken with a gradient that is not the one `optimizer.step()` would see."""
    reasons = {
        "find_unused_parameters: only at the end is it known which parameters have a gradient": model.find_unused_parameters,
        "static_graph, with which DDP leaves unused parameters out": options.static_graph or _as_made(model)[1],
        f"non_finite={options.non_finite}: only at the end is it known whether the step is taken": options.non_finite != "ignore",
    }
    if reason := next((reason for reason, holds in reasons.items() if holds), None):
        raise InputError(f"the optimizer's step cannot go into the backward pass together with {reason}. Leave one of both out.")


def accelerate_ddp(
    model: nn.parallel.DistributedDataParallel, options: Comm | None = None, *, optimizer: torch.optim.Optimizer | None = None
) -> nn.parallel.DistributedDataParallel:
    """Have `model` average its gradients as `options` say (`Comm()` when left out). A collective call; returns `model` itself.

    With `optimizer`, each bucket's parameters get their step as soon as their gradients are there, while others are on their way;
    `optimizer.step()`, which is still to be called after each backward pass, does what is left. All that changes gradients between
    backward pass and step (clipping, a GradScaler) then comes too late: do without, or leave `optimizer` out.

    It may be called again with other options between two steps; what error feedback has kept is dropped then. Raises
    InputError for a model that is no DistributedDataParallel, is not in the default process group, or has a communication hook of
    its own, for an optimizer whose step cannot be divided, and for options that do not go together.
    """
    options = options or Comm()
    if not isinstance(model, DDP):
        raise InputError(f"accelerate_ddp() takes a DistributedDataParallel, and got a {type(model).__name__}. Wrap the model first.")
    before: GradientReducer | None = getattr(model, _REDUCER, None)
    hooked = needs_hook(options) or optimizer is not None
    if reason := obstacle(model, hooked):
        raise InputError(f"this model cannot be accelerated in this way: {reason}.")
    if options.wire == "powersgd" and (options.hierarchical or options.streams > 1):
        raise InputError("wire=powersgd does not go together with hierarchical or several streams. Leave these off.")
    early_steps = None
    if optimizer is not None:
        _check_early_steps(model, options)
        early_steps = EarlySteps(optimizer)
    if before is not None:
        before.close()
    was_training, required, as_made = model.training, model.require_backward_grad_sync, _as_made(model)
    inspect.unwrap(DDP.__init__)(
        model,
        model.module,  # torch's own, also where auto.py has put another one there
        **_arguments(model, options),
    )
    model.train(was_training)
    model.require_backward_grad_sync = required
    object.__setattr__(model, _AS_MADE, as_made)
    reducer = GradientReducer(model.module, options, model.device, _joined(model), early_steps) if hooked else None
    if reducer is not None:
        model.register_comm_hook(None, reducer.take)
    object.__setattr__(model, _REDUCER, reducer)
    return model


def comm_state_dict(model: nn.Module) -> dict[str, Any]:
    """What error feedback keeps, on this rank, beside the model's own state: for this rank's part of a checkpoint."""
    reducer: GradientReducer | None = getattr(model, _REDUCER, None)
    return reducer.state_dict() if reducer is not None else {}


def load_comm_state_dict(model: nn.Module, state: dict[str, Any]) -> None:
    """Go on with what `comm_state_dict` gave, on the same rank of as many processes, with the same options."""
    reducer: GradientReducer | None = getattr(model, _REDUCER, None)
    if reducer is None:
        if state:
            raise InputError("there is communication state to load, and the model communicates as DDP does. accelerate_ddp() it first.")
        return
    reducer.load_state_dict(state)
