"""Preconditions of a strategy: of the model, of the options, and of both on all ranks."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.distributed as dist

from gallery_lib.comm.rebuild import DDP
from gallery_lib.config import Comm
from gallery_lib.errors import InputError


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


def check_compatible(options: Comm) -> None:
    """Raise InputError for options that do not go together."""
    if options.wire == "powersgd" and (options.hierarchical or options.streams > 1):
        raise InputError(
            "wire=powersgd does not go together with hierarchical or several streams. "
            "Leave these off.",
            parameter="wire",
        )


def check_early_steps(model: DDP, options: Comm, optimizer: torch.optim.Optimizer) -> None:
    """Raise InputError where the optimizer's step cannot go into the backward pass.

    A gradient may not be final by then, that is, not the one that `optimizer.step()` would see. Or
    the optimizer has none of the model's parameters.
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
            "Leave one of both out.",
            parameter="optimizer",
        )
    own = {id(parameter) for parameter in model.module.parameters()}
    if not any(
        id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]
    ):
        raise InputError(
            "none of the optimizer's parameters is one of the model's. "
            "Give the optimizer of this model, or none.",
            parameter="optimizer",
        )


def check_same_on_all_ranks(
    model: DDP, options: Comm, call: str, optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Raise InputError on every rank if ranks ask for different options. A collective call.

    Ranks with different options would wait for each other. `call` names the call in the message.
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
                    f"{call}: ranks ask for different options: {name}={everyone[0][name]!r} on "
                    f"rank 0, and {name}={value!r} on rank {rank}. Set the same on all.",
                    parameter=name,
                )
