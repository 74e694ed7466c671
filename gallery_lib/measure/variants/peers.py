"""Peers of this backend that a user could pick, each as somebody who tunes by hand uses it.

In bfloat16, or in fp32 without what is said of bfloat16:

- `eager`: autocast around forward pass and loss.
- `torch.compile`: `model.compile()`, and autocast.
- `accelerate`, Hugging Face's: mixed precision bf16, the dynamo plugin with Inductor, `prepare`,
  `accelerator.backward(loss)`.
- `fabric`, Lightning's: precision bf16-mixed, `torch.compile(model)`, `setup`, `setup_dataloaders`,
  `fabric.backward(loss)`.

Each has torch's fused optimizer, where torch has one of that class; channels_last for weights and
images, where convolutions gain from it and the model's code is of libraries that take it; on the
CPU, glibc's tunables, with which it keeps large blocks.

Nothing of this backend is used: not its one-pass optimizers, not its compiler passes, not its way
of loading. `accelerate` and `fabric` are optional: the extra `bench` installs them.
"""

from __future__ import annotations

import importlib.util
import inspect
from typing import Any

import torch

from gallery_lib.comm import process_group
from gallery_lib.compiler import cache
from gallery_lib.config import Loader, Memory
from gallery_lib.data.loading.device_loader import DeviceLoader
from gallery_lib.errors import InputError
from gallery_lib.memory import allocator
from gallery_lib.memory.layout import memory_format, takes_any_layout
from gallery_lib.train.recipe import Plain, Prepared, Recipe

MODULES = {
    "eager-best": "torch",
    "torch.compile-best": "torch",
    "accelerate-best": "accelerate",
    "fabric-best": "lightning_fabric",
}
"""The Python module that each peer needs."""


def missing(name: str) -> str | None:
    """Return how to install what the peer `name` lacks here, or None when it is there."""
    if importlib.util.find_spec(MODULES[name]) is not None:
        return None
    return f"not installed: {MODULES[name].replace('_', '-')} (`prepare.sh --test` installs it)"


def _allocator(device: torch.device) -> str:
    """Return what was done, in the words that `process_spread` looks for."""
    if device.type != "cpu":
        return "torch's caching allocator (CUDA)"
    if reason := allocator.reason_not_applied():
        return f"not applied: {reason}"
    kept = f"{allocator.KEEPS} (GLIBC_TUNABLES)"
    return kept if allocator.active() else "not applied: started without GLIBC_TUNABLES"


def _optimizer(plain: Plain, done: dict[str, str]) -> torch.optim.Optimizer:
    optimizer = plain.build_optimizer(accelerated=False)
    kind = type(optimizer)
    if "fused" not in inspect.signature(kind).parameters:
        done["optimizer"] = f"{kind.__name__} as it comes: torch has no fused form of it"
        return optimizer
    done["optimizer"] = f"{kind.__name__}, torch's fused form"
    return plain.build_optimizer(accelerated=False, fused=True)


class Peer(Recipe):
    """The peer `name`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.keeps_loader = name in ("eager-best", "torch.compile-best")

    def prepare(self, plain: Plain) -> Prepared:
        """Return the model ready to train; InputError in float16, which needs a loss scaler."""
        if plain.autocast_dtype not in (None, torch.bfloat16):
            raise InputError(
                f"{self.name} is measured in fp32 and bfloat16, and this run is in "
                f"{plain.autocast_dtype}.",
                parameter="amp_dtype",
            )
        device, done = process_group.device(), {}
        layout = memory_format(plain.model, Memory(), device.type)
        if layout is torch.channels_last and takes_any_layout(plain.model):
            plain.model.to(memory_format=layout)  # type: ignore[call-overload]
            done["layout"] = "channels_last"
        elif layout is torch.channels_last:
            layout = torch.contiguous_format
            done["layout"] = "contiguous: code of the model's own may need it"
        done["allocator"] = _allocator(device)
        if self.name != "eager-best":
            cache.keep_headers()
        build = {
            "accelerate-best": _accelerate,
            "fabric-best": _fabric,
            "torch.compile-best": _torch_compile,
        }
        wrapped, loader, optimizer, more = build.get(self.name, _eager)(plain, done)
        # What is the data set's own, its epochs and the end of its batches, is around the loader.
        unaided = Loader(prefetch=0, nice=0)
        batches = DeviceLoader(loader, device, layout, unaided, shard=False)
        dtype = None if more else plain.autocast_dtype
        return Prepared(wrapped, batches, optimizer, dtype, done, **more)


_Made = tuple[Any, Any, Any, dict[str, Any]]
"""Model, loader and optimizer, and how a loss is propagated where the library does it."""


def _eager(plain: Plain, done: dict[str, str]) -> _Made:
    plain.model.to(process_group.device())
    return plain.model, plain.loader, _optimizer(plain, done), {}


def _torch_compile(plain: Plain, done: dict[str, str]) -> _Made:
    plain.model.compile()
    done["compiler"] = f"torch.compile {torch.__version__}"
    return _eager(plain, done)


def _accelerate(plain: Plain, done: dict[str, str]) -> _Made:
    import accelerate
    from accelerate.utils import TorchDynamoPlugin

    precision = "bf16" if plain.autocast_dtype else "no"
    plugin = TorchDynamoPlugin(backend="inductor")
    accelerator = accelerate.Accelerator(mixed_precision=precision, dynamo_plugin=plugin)
    wrapped, optimizer, batches = accelerator.prepare(
        plain.model, _optimizer(plain, done), plain.loader
    )
    done["compiler"] = f"accelerate {accelerate.__version__}, dynamo plugin, backend inductor"
    return wrapped, batches, optimizer, {"propagate": accelerator.backward}


def _fabric(plain: Plain, done: dict[str, str]) -> _Made:
    import lightning_fabric

    precision = "bf16-mixed" if plain.autocast_dtype else "32-true"
    fabric = lightning_fabric.Fabric(devices=1, precision=precision)  # type: ignore[arg-type]
    fabric.launch()
    compiled: Any = torch.compile(plain.model)  # a compiled module is a Module
    wrapped, optimizer = fabric.setup(compiled, _optimizer(plain, done))
    batches = fabric.setup_dataloaders(plain.loader)
    done["compiler"] = f"lightning-fabric {lightning_fabric.__version__}, torch.compile"
    return wrapped, batches, optimizer, {"propagate": fabric.backward}
