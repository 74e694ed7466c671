"""What a user could pick instead of this backend, each used as its own documentation tells a user to.

In bfloat16, or in fp32 with what is said of bfloat16 left out:

- `torch.compile`: `model.compile()`, and autocast around forward pass and loss.
- `accelerate`, Hugging Face's: mixed precision bf16, the dynamo plugin with Inductor, `prepare`, `accelerator.backward(loss)`.
- `fabric`, Lightning's: precision bf16-mixed, `torch.compile(model)`, `setup`, `setup_dataloaders`, `fabric.backward(loss)`.

None gets a layout, an allocator, loading at low priority or a fused optimizer; `fused=True` gives them the optimizer that ours
has, which anyone can take by itself. The last two are optional: the extra `bench` installs them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from gallery_lib.comm import process_group
from gallery_lib.config import Loader
from gallery_lib.data.device_loader import DeviceLoader
from gallery_lib.errors import InputError
from gallery_lib.recipe import Plain, Prepared, Recipe

PEERS = {"torch.compile": "torch", "accelerate": "accelerate", "fabric": "lightning_fabric"}
"""The module that each needs."""


def missing(name: str) -> str | None:
    """How to install what the peer `name` lacks here, or None when it is there."""
    if importlib.util.find_spec(PEERS[name]) is not None:
        return None
    return f"not installed: {PEERS[name].replace('_', '-')} (pip install 'gallery_lib[bench]')"


def _batches(loader: Any, device: torch.device) -> DeviceLoader:
    """The peer's loader with what is the data set's own: its epochs, and its batches finished on the device."""
    return DeviceLoader(loader, device, torch.contiguous_format, Loader(prefetch=0, nice=0), shard=False)


class Peer(Recipe):
    """The peer `name`, with torch's optimizer as it comes, or fused."""

    def __init__(self, name: str, *, fused: bool) -> None:
        self.name, self.fused = name, fused
        self.keeps_loader = name == "torch.compile"

    def prepare(self, plain: Plain) -> Prepared:
        """Raises InputError in float16, which needs a scaler, of which the others have their own."""
        dtype = plain.autocast_dtype
        if dtype not in (None, torch.bfloat16):
            raise InputError(f"{self.name} is measured in fp32 and bfloat16, and this run is in {dtype}.")
        build = {"torch.compile": _torch_compile, "accelerate": _accelerate, "fabric": _fabric}[self.name]
        return build(plain.model, plain.loader, lambda: plain.build_optimizer(accelerated=self.fused), dtype)


def _torch_compile(
    model: nn.Module, loader: DataLoader[Any], optimizer: Callable[[], torch.optim.Optimizer], dtype: torch.dtype | None
) -> Prepared:
    device = process_group.device()
    model.to(device)
    model.compile()
    return Prepared(model, _batches(loader, device), optimizer(), dtype, {"compiler": f"torch.compile {torch.__version__}"})


def _accelerate(
    model: nn.Module, loader: DataLoader[Any], optimizer: Callable[[], torch.optim.Optimizer], dtype: torch.dtype | None
) -> Prepared:
    import accelerate
    from accelerate.utils import TorchDynamoPlugin

    accelerator = accelerate.Accelerator(mixed_precision="bf16" if dtype else "no", dynamo_plugin=TorchDynamoPlugin(backend="inductor"))
    wrapped, update, batches = accelerator.prepare(model, optimizer(), loader)
    done = {"compiler": f"accelerate {accelerate.__version__}, dynamo plugin, backend inductor"}
    return Prepared(wrapped, _batches(batches, accelerator.device), update, None, done, accelerator.backward)


def _fabric(
    model: nn.Module, loader: DataLoader[Any], optimizer: Callable[[], torch.optim.Optimizer], dtype: torch.dtype | None
) -> Prepared:
    import lightning_fabric

    fabric = lightning_fabric.Fabric(devices=1, precision="bf16-mixed" if dtype else "32-true")
    fabric.launch()
    wrapped, update = fabric.setup(torch.compile(model), optimizer())  # type: ignore[arg-type]  # a compiled module is a Module
    batches = fabric.setup_dataloaders(loader)
    done = {"compiler": f"lightning-fabric {lightning_fabric.__version__}, torch.compile"}
    return Prepared(wrapped, _batches(batches, fabric.device), update, None, done, fabric.backward)
