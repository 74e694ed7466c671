"""DistributedDataParallel that keeps the user's model: names, attributes, type and methods.

`distribute(model, …)` returns a *twin* of the model. The twin is an object of a subclass of the
model's class and shares the model's `__dict__`, so both have the same parameters, hooks and
attributes. A call of the twin goes through a DistributedDataParallel that is kept beside it
(`distribution.py`). `twin.module` is the model itself, which communicates with nobody. So
`named_parameters()`, `state_dict()`, `torch.distributed.checkpoint`, averaging by name and
`model.fc` see what they see on one process. Copies and pickles of the twin are plain models of the
user's class.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from gallery_lib.comm.distribution import DDP, Distribution
from gallery_lib.comm.watch import DISTRIBUTION
from gallery_lib.config import Comm
from gallery_lib.errors import InputError


class _Twin:
    """First base of a twin's class, before the user's class."""

    def __init_subclass__(cls, **_: Any) -> None:
        """Keep a twin's class from the user's `__init_subclass__`, a registry for instance."""


def distribute(model: nn.Module, device: torch.device, options: Comm) -> Any:
    """Return the twin of `model`; its calls average gradients over all ranks as `options` say.

    A collective call. The model must be on `device` already.

    Raises:
        InputError: for a model whose class cannot have a twin.
    """
    kind = type(model)
    distribution = Distribution(model, device, options)

    def train(self: Any, mode: bool = True) -> Any:
        distribution.look_at_parameters()
        kind.train(self, mode)
        return self

    def compile_refused(self: Any, *_: Any, **__: Any) -> None:
        raise InputError(
            "accelerate() compiles the model itself: leave model.compile() out, or call it before."
        )

    namespace: dict[str, Any] = {
        "__doc__": kind.__doc__,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__call__": lambda self, *args, **kwargs: distribution(*args, **kwargs),
        "__reduce_ex__": lambda self, protocol: model.__reduce_ex__(protocol),
        "__deepcopy__": lambda self, memo: copy.deepcopy(model, memo),
        "train": train,
        "compile": compile_refused,
        DISTRIBUTION: distribution,
    }
    own: dict[str, Any] = {
        "no_sync": distribution.no_sync,
        "join": distribution.join,
        "module": model,
    }
    own["require_backward_grad_sync"] = property(
        lambda _: distribution.synchronizes,
        lambda _, value: setattr(distribution, "synchronizes", value),
    )
    namespace |= {name: value for name, value in own.items() if not hasattr(model, name)}
    metaclass: Any = type(kind)
    try:
        twin: Any = object.__new__(metaclass(kind.__name__, (_Twin, kind), namespace))
        object.__setattr__(twin, "__dict__", model.__dict__)
    except TypeError as error:
        raise InputError(
            f"a {kind.__name__} cannot be distributed: {error}. Wrap it in a module of your own.",
            parameter="model",
        ) from None
    return twin


def distributed(model: nn.Module) -> DDP | None:
    """Return the DistributedDataParallel through which `model` is called, or None."""
    distribution = _distribution(model)
    if distribution is not None:
        return distribution.ddp
    return model if isinstance(model, DDP) else None


def _distribution(model: nn.Module) -> Distribution | None:
    return getattr(type(model), DISTRIBUTION, None)


def plain_module(model: nn.Module) -> nn.Module:
    """Return the user's own module inside what accelerate() returned, or inside a DDP."""
    distribution = _distribution(model)
    if distribution is not None:
        return distribution.model
    return model.module if isinstance(model, DDP) else model


def exposed_communication(model: nn.Module) -> dict[str, float]:
    """Return the seconds of a backward pass in which communication was not hidden by computation.

    The result is {"exposed_communication": seconds}, the mean of the steps that DDP samples by
    itself. It is empty for a model that is not distributed, or before any sample.
    """
    ddp = distributed(model)
    if ddp is None:
        return {}
    seen = ddp._get_ddp_logging_data()
    communication, hidden = (
        seen.get(f"avg_backward_{name}_time") for name in ("comm", "compute_comm_overlap")
    )
    if not communication or hidden is None:
        return {}
    return {"exposed_communication": max(0, communication - hidden) / 1e9}
