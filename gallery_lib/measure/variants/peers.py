"""Peers of this backend that a user could pick, as their documentation shows them and at best.

As they come, in bfloat16, or in fp32 without what is said of bfloat16:

- `torch.compile`: `model.compile()`, and autocast around forward pass and loss.
- `accelerate`, Hugging Face's: mixed precision bf16, the dynamo plugin with Inductor, `prepare`,
  `accelerator.backward(loss)`.
- `fabric`, Lightning's: precision bf16-mixed, `torch.compile(model)`, `setup`, `setup_dataloaders`,
  `fabric.backward(loss)`.

At its best each gets what somebody who tunes by hand adds, and so does `eager`, which is autocast
alone: torch's fused optimizer, where torch has one of that class; channels_last for weights and
images, where convolutions gain from it and the model's code is of libraries that take it; on the
CPU, glibc's tunables, with which it keeps large blocks.

Nothing of this backend is used: not its one-pass optimizers, not its compiler passes, not its way
of loading. `accelerate` and `fabric` are optional: the extra `bench` installs them.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from gallery_lib.comm import process_group
from gallery_lib.compiler import cache
from gallery_lib.config import Loader, Memory
from gallery_lib.data.loading.device_loader import DeviceLoader
from gallery_lib.errors import InputError
from gallery_lib.memory import allocator
from gallery_lib.memory.layout import memory_format, takes_any_layout
from gallery_lib.system.version import install_command
from gallery_lib.train.recipe import Plain, Prepared, Recipe

EAGER = "eager"
MODULES = {
    EAGER: "torch",
    "torch.compile": "torch",
    "accelerate": "accelerate",
    "fabric": "lightning_fabric",
}
"""The Python module that each peer needs."""


def missing(name: str) -> str | None:
    """Return how to install what the peer `name` lacks here, or None when it is there."""
    if importlib.util.find_spec(MODULES[name]) is not None:
        return None
    return f"not installed: {MODULES[name].replace('_', '-')} ({install_command('bench')})"


@dataclass
class _Form:
    """How a peer is used; `done` tells, by technique, what was done beyond its documentation."""

    build_optimizer: Callable[[], torch.optim.Optimizer]
    layout: torch.memory_format = torch.contiguous_format  # of images
    done: dict[str, str] = field(default_factory=dict)

    def prepared(
        self,
        model: nn.Module,
        loader: Any,
        device: torch.device,
        optimizer: Any,
        dtype: torch.dtype | None,
        **more: Any,
    ) -> Prepared:
        # What is the data set's own, its epochs and the end of its batches, is around the loader.
        plain = Loader(prefetch=0, nice=0)
        batches = DeviceLoader(loader, device, self.layout, plain, shard=False)
        return Prepared(model, batches, optimizer, dtype, self.done, **more)


def _at_best(plain: Plain, device: torch.device) -> _Form:
    """Lay out the model and return the form of somebody who tunes by hand."""
    done: dict[str, str] = {}
    layout = memory_format(plain.model, Memory(), device.type)
    if layout is torch.channels_last and takes_any_layout(plain.model):
        plain.model.to(memory_format=layout)  # type: ignore[call-overload]
        done["layout"] = "channels_last"
    elif layout is torch.channels_last:
        layout = torch.contiguous_format
        done["layout"] = "contiguous: code of the model's own may need it"
    done["allocator"] = _allocator(device)
    return _Form(lambda: _optimizer(plain, done), layout, done)


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
    """The peer `name`: as it comes, or at its best."""

    def __init__(self, name: str, *, best: bool) -> None:
        self.name, self.best = name, best
        self.keeps_loader = name in (EAGER, "torch.compile")

    def prepare(self, plain: Plain) -> Prepared:
        """Return the model ready to train; InputError in float16, which needs a loss scaler."""
        if plain.autocast_dtype not in (None, torch.bfloat16):
            raise InputError(
                f"{self.name} is measured in fp32 and bfloat16, and this run is in "
                f"{plain.autocast_dtype}.",
                parameter="amp_dtype",
            )
        if self.best:
            form = _at_best(plain, process_group.device())
        else:
            form = _Form(lambda: plain.build_optimizer(accelerated=False))
        if self.name != EAGER:
            cache.keep_headers()
        build = {"accelerate": _accelerate, "fabric": _fabric, "torch.compile": _torch_compile}
        return build.get(self.name, _eager)(plain, form)


def _eager(plain: Plain, form: _Form) -> Prepared:
    device = process_group.device()
    plain.model.to(device)
    optimizer = form.build_optimizer()
    return form.prepared(plain.model, plain.loader, device, optimizer, plain.autocast_dtype)


def _torch_compile(plain: Plain, form: _Form) -> Prepared:
    plain.model.compile()
    form.done["compiler"] = f"torch.compile {torch.__version__}"
    return _eager(plain, form)


def _accelerate(plain: Plain, form: _Form) -> Prepared:
    import accelerate
    from accelerate.utils import TorchDynamoPlugin

    precision = "bf16" if plain.autocast_dtype else "no"
    plugin = TorchDynamoPlugin(backend="inductor")
    accelerator = accelerate.Accelerator(mixed_precision=precision, dynamo_plugin=plugin)
    wrapped, optimizer, batches = accelerator.prepare(
        plain.model, form.build_optimizer(), plain.loader
    )
    form.done["compiler"] = f"accelerate {accelerate.__version__}, dynamo plugin, backend inductor"
    back = accelerator.backward
    return form.prepared(wrapped, batches, accelerator.device, optimizer, None, propagate=back)


def _fabric(plain: Plain, form: _Form) -> Prepared:
    import lightning_fabric

    precision = "bf16-mixed" if plain.autocast_dtype else "32-true"
    fabric = lightning_fabric.Fabric(devices=1, precision=precision)  # type: ignore[arg-type]
    fabric.launch()
    compiled: Any = torch.compile(plain.model)  # a compiled module is a Module
    wrapped, optimizer = fabric.setup(compiled, form.build_optimizer())
    batches = fabric.setup_dataloaders(plain.loader)
    form.done["compiler"] = f"lightning-fabric {lightning_fabric.__version__}, torch.compile"
    back = fabric.backward
    return form.prepared(wrapped, batches, fabric.device, optimizer, None, propagate=back)
