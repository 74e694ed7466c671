"""DistributedDataParallel with the plain model's state-dict keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


class PlainKeysDDP(nn.parallel.DistributedDataParallel):
    """DDP whose `state_dict` and `load_state_dict` are the wrapped model's, without the `module.` prefix."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The wrapped model's state."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load into the wrapped model."""
        return self.module.load_state_dict(state_dict, *args, **kwargs)


def distribute(model: nn.Module, device: torch.device) -> nn.Module:
    """`model`, already on `device`, with gradients averaged over all ranks."""
    return PlainKeysDDP(model, device_ids=[device.index] if device.type == "cuda" else None)
