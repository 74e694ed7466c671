"""Memory layout: channels_last for 2-d convolutions, on devices that gain from it.

NHWC lets convolutions and batch norm read all channels of a pixel at once. Parameters, gradients,
batches and results stay as the user has them. A compiled model has the layout inside its graph
(`compiler.passes.channels_last`). An uncompiled one computes in it only where it is asked for by
name, since the model's own code and hooks then see it: `convert_images`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gallery_lib.compiler.calls import Call, wrap_calls
from gallery_lib.config import Memory
from gallery_lib.data.loading.nesting import map_tensors
from gallery_lib.system import hardware

_LIBRARIES = ("torch", "torchvision", "timm", "gallery_lib")


def memory_format(model: nn.Module, memory: Memory, device_type: str) -> torch.memory_format:
    """Return the memory format in which `memory` has the convolutions of a model run."""
    if memory.layout != "auto":
        return torch.channels_last if memory.layout == "channels_last" else torch.contiguous_format
    gains = hardware.prefers_channels_last(device_type) and any(
        isinstance(module, nn.Conv2d) for module in model.modules()
    )
    return torch.channels_last if gains else torch.contiguous_format


def convert_images(model: nn.Module) -> None:
    """Have an uncompiled `model` get 4-d inputs in channels_last; its results are contiguous."""

    def step(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = map_tensors(
            lambda tensor: _laid_out(tensor, torch.channels_last), (args, kwargs)
        )
        result = call(*args, **kwargs)
        return map_tensors(lambda tensor: _laid_out(tensor, torch.contiguous_format), result)

    wrap_calls(model, step)


def _laid_out(tensor: Tensor, layout: torch.memory_format) -> Tensor:
    if tensor.dim() != 4 or tensor.layout is not torch.strided:
        return tensor
    return tensor.contiguous(memory_format=layout)


def takes_any_layout(model: nn.Module) -> bool:
    """Return whether all of a model's code is of libraries that are known to take channels_last."""
    return all(type(one).__module__.split(".")[0] in _LIBRARIES for one in model.modules())
