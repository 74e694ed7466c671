"""Memory layout: channels_last for models with 2-d convolutions, on devices that gain from it.

NHWC lets convolutions and batch norm read all channels of a pixel at once. Values do not change,
only where they lie. The loader lays out the inputs (`finish_batch`), and everything inside the
model follows.
"""

from __future__ import annotations

import torch
from torch import nn

from gallery_lib.config import Memory
from gallery_lib.system import hardware


def memory_format(model: nn.Module, memory: Memory, device_type: str) -> torch.memory_format:
    """Return the memory format of 4-d weights and inputs that `memory` asks for.

    It depends on the model and on the kind of device.
    """
    if memory.layout != "auto":
        return torch.channels_last if memory.layout == "channels_last" else torch.contiguous_format
    gains = hardware.prefers_channels_last(device_type) and any(
        isinstance(module, nn.Conv2d) for module in model.modules()
    )
    return torch.channels_last if gains else torch.contiguous_format
