"""DistributedDataParallel with the plain model's state-dict keys."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from gallery_lib.comm import topology
from gallery_lib.comm.tuner import apply
from gallery_lib.config import Comm


class PlainKeysDDP(nn.parallel.DistributedDataParallel):
    """DDP whose `state_dict` and `load_state_dict` are the wrapped model's, without the `module.` prefix.

    `one_graph`: leave a compiled model as it is. torch splits it at bucket boundaries, so that the first gradients are on their way
    while others are computed.
    """

    one_graph = False

    def _inside_ddp_forward(self) -> Any:
        return contextlib.nullcontext() if self.one_graph else super()._inside_ddp_forward()

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped model's state."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load into the wrapped model."""
        return self.module.load_state_dict(state_dict, *args, **kwargs)


def distribute(model: nn.Module, device: torch.device, options: Comm) -> nn.Module:
    """`model`, already on `device`, with gradients averaged over all ranks as `options` say. A collective call.

    On CPUs of one host a compiled model stays one graph: there averaging and computing need the same cores. Between hosts it is
    the link that takes its time.
    """
    distributed = PlainKeysDDP(model, device_ids=[device.index] if device.type == "cuda" else None)
    distributed.one_graph = device.type == "cpu" and len(topology.find().hosts) == 1
    if options != Comm():
        apply(distributed, options)
    return distributed


def exposed_communication(model: nn.Module) -> dict[str, float]:
    """Seconds of a backward pass in which communication went on and no computation hid it: {"exposed_communication": …}.

    The mean of the steps that DDP samples by itself. Empty for a model that is not distributed, or before any sample.
    """
    if not isinstance(model, nn.parallel.DistributedDataParallel):
        return {}
    seen = model._get_ddp_logging_data()
    communication, hidden = (seen.get(f"avg_backward_{name}_time") for name in ("comm", "compute_comm_overlap"))
    if not communication or hidden is None:
        return {}
    return {"exposed_communication": max(0, communication - hidden) / 1e9}
