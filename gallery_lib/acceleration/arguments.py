"""Arguments of accelerate(), told apart by type and handed back in the order of the call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset, IterableDataset

from gallery_lib.config import Config
from gallery_lib.errors import InputError, did_you_mean

NAMES = ("model", "loader", "optimizer", "scheduler", "config")
_TYPES: dict[str, tuple[type, str]] = {
    "model": (nn.Module, "a torch.nn.Module"),
    "optimizer": (Optimizer, "a torch.optim.Optimizer"),
    "scheduler": (LRScheduler, "a scheduler of torch.optim.lr_scheduler"),
    "config": (Config, "a gallery_lib.Config"),
    "loader": (object, "a loader of batches"),
}
"""Type of each kind of part, and how a message names it."""


@dataclass
class Parts:
    """Parts of a training script: a model, and any number of loaders, optimizers, schedulers."""

    given: list[tuple[str, Any]]
    """Kind and object, in the order of the call; a loader that was left out is None."""
    config: Config

    @property
    def model(self) -> nn.Module:
        """Return the only model."""
        return next(part for kind, part in self.given if kind == "model")

    def of_kind(self, kind: str) -> list[Any]:
        """Return the parts of a kind, in order, without those left out."""
        return [part for name, part in self.given if name == kind and part is not None]

    def handed_back(self, replaced: Mapping[int, Any]) -> Any:
        """Return the parts in order, each as the value of its id in `replaced`, if it has one.

        One part comes back as itself, several as a tuple.
        """
        parts = tuple(replaced.get(id(part), part) for _, part in self.given)
        return parts if len(parts) > 1 else parts[0]


def sort(positional: tuple[Any, ...], named: Mapping[str, Any]) -> Parts:
    """Return the parts among the arguments of a call of accelerate().

    Raises:
        InputError: for a part of another type, a name that is not offered, no model, or two of
            them.
    """
    parts: list[tuple[str, Any]] = []
    left_out = len(positional)
    while left_out > 2 and positional[left_out - 1] is None:
        left_out -= 1  # accelerate(model, loader, None): no config
    for place, part in enumerate(positional[:left_out]):
        parts.append((NAMES[place] if part is None and place < len(NAMES) else _kind(part), part))
    for name, part in named.items():
        if name not in NAMES:
            raise InputError(
                f"accelerate() has no argument `{name}`.{did_you_mean(name, NAMES)} It takes "
                f"{', '.join(NAMES)}.",
                parameter=name,
            )
        if part is not None and _kind(part) != name:
            wanted = _TYPES[name][1]
            raise InputError(f"{name}=a {type(part).__name__} must be {wanted}.", parameter=name)
        if part is not None or name == "loader":
            parts.append((name, part))
    for kind, hint in (
        ("model", "Call accelerate() once for each model."),
        ("config", "Give one."),
    ):
        if sum(name == kind and part is not None for name, part in parts) > 1:
            raise InputError(
                f"accelerate() got two parts that are {_TYPES[kind][1]}. {hint}", parameter=kind
            )
    if not any(kind == "model" and part is not None for kind, part in parts):
        raise InputError("accelerate() needs a model (a torch.nn.Module).", parameter="model")
    configs = [part for kind, part in parts if kind == "config" and part is not None]
    parts = [(kind, part) for kind, part in parts if kind != "config"]
    return Parts(parts, configs[0] if configs else Config())


def _kind(part: Any) -> str:
    kind = next(kind for kind, (one, _) in _TYPES.items() if isinstance(part, one))
    if kind != "loader":
        return kind
    iterable = isinstance(part, Iterable) or hasattr(part, "__getitem__")
    dataset = isinstance(part, Dataset) and not isinstance(part, IterableDataset)
    if not iterable or dataset or isinstance(part, (str, bytes, Mapping, Tensor, type)):
        hint = " Put a data set into a torch.utils.data.DataLoader first."
        raise InputError(
            f"accelerate() got a {type(part).__name__}; it takes a model, loaders of batches, "
            "optimizers, schedulers of torch.optim.lr_scheduler and a Config, in any order."
            f"{hint if isinstance(part, Dataset) else ''}"
        )
    return kind


# --------------------------------------------------------------------------------------------------
# Refuse models and optimizers that accelerate() cannot work on, with what to do instead.


def check_model(model: nn.Module) -> None:
    """Raise InputError for a model that is distributed or sharded already, or has no values."""
    for name, module in model.named_modules():
        kind = type(module).__name__
        wrapped = isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel))
        if wrapped or "FSDP" in kind or "FullySharded" in kind:
            where = f"its module {name}" if name else "the model"
            raise InputError(
                f"{where} is a {kind} already. Give accelerate() the plain module: it distributes "
                "the model itself.",
                parameter="model",
            )
    for name, parameter in model.named_parameters():
        problem = ""
        if parameter.is_meta:
            problem = "has no values (it is on the meta device). Load or initialise it first."
        elif "DTensor" in (type(parameter).__name__, type(parameter.data).__name__):
            problem = "is sharded (a DTensor). Give accelerate() the plain module."
        if problem:
            raise InputError(f"the model's parameter {name} {problem}", parameter="model")


def check_optimizers(model: nn.Module, optimizers: list[Optimizer]) -> None:
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
    """Return whether the model has SyncBatchNorm, which on one process acts as BatchNorm."""
    return any(isinstance(module, nn.SyncBatchNorm) for module in model.modules())
