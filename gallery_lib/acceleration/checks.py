"""Refuse models and optimizers that accelerate() cannot work on, with what to do instead."""

from __future__ import annotations

import torch
from torch import nn

from gallery_lib.errors import InputError


def check_model(model: nn.Module) -> None:
    """Raise InputError for a model that is distributed or sharded already, or has no values."""
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
                "the model itself.",
                parameter="model",
            )
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise InputError(
                f"the model's parameter {name} has no values (it is on the meta device). Load or "
                "initialise it first.",
                parameter="model",
            )
        if "DTensor" in (type(parameter).__name__, type(parameter.data).__name__):
            raise InputError(
                f"the model's parameter {name} is sharded (a DTensor). Give accelerate() the plain "
                "module.",
                parameter="model",
            )


def check_optimizers(model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
    """Raise InputError for an optimizer that has none of the model's parameters."""
    own = {id(parameter) for parameter in model.parameters()}
    for optimizer in optimizers:
        if not any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
            raise InputError(
                f"the {type(optimizer).__name__} has none of the model's parameters. Make it from "
                "model.parameters() of the model that accelerate() gets.",
                parameter="optimizer",
            )


def check_for_several_processes(model: nn.Module, device: torch.device) -> None:
    """Raise InputError for a model that several processes on such devices cannot train."""
    if any(map(nn.parameter.is_lazy, model.parameters())):
        raise InputError(
            "the model has lazy parameters, which several processes cannot share. Call it once on "
            "a batch before accelerate().",
            parameter="model",
        )
    if device.type == "cpu" and has_synchronized_norm(model):
        raise InputError(
            "the model has SyncBatchNorm, which torch offers on GPUs only. On several processes "
            "of a CPU leave convert_sync_batchnorm() out: "
            "BatchNorm then counts each rank's own batch.",
            parameter="model",
        )


def has_synchronized_norm(model: nn.Module) -> bool:
    """Return whether the model has SyncBatchNorm.

    On one process SyncBatchNorm has to act as BatchNorm, so no process group is made for it.
    """
    return any(isinstance(module, nn.SyncBatchNorm) for module in model.modules())
