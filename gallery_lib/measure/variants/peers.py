"""Peers of this backend that a user could pick, as their documentation shows them and at best.

As they come, in bfloat16, or in fp32 without what is said of bfloat16:

- `torch.compile`: `model.compile()`, and autocast around forward pass and loss.
- `accelerate`, Hugging Face's: mixed precision bf16, the dynamo plugin with Inductor, `prepare`,
  `accelerator.backward(loss)`.
- `fabric`, Lightning's: precision bf16-mixed, `torch.compile(model)`, `setup`, `setup_dataloaders`,
  `fabric.backward(loss)`.

At its best each gets what by_hand.py says, and so does `eager`, which is autocast alone. None gets
loading at low priority or anything else of this backend. `accelerate` and `fabric` are optional:
the extra `bench` installs them.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from gallery_lib.comm import process_group
from gallery_lib.compiler import cache
from gallery_lib.config import Loader
from gallery_lib.data.loading.device_loader import DeviceLoader
from gallery_lib.errors import InputError
from gallery_lib.measure.variants import by_hand
from gallery_lib.measure.variants.by_hand import Form
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


def _batches(loader: Any, device: torch.device, form: Form) -> DeviceLoader:
    """Wrap the peer's loader with what is the data set's own.

    That is its epochs, and its batches finished on the device.
    """
    return DeviceLoader(loader, device, form.layout, Loader(prefetch=0, nice=0), shard=False)


class Peer(Recipe):
    """The peer `name`: as it comes, or at its best where a `mode` of torch.compile is given."""

    def __init__(self, name: str, *, mode: str | None = None) -> None:
        self.name, self.mode = name, mode
        self.keeps_loader = name in (EAGER, "torch.compile")

    def prepare(self, plain: Plain) -> Prepared:
        """Return the model ready to train.

        Raises:
            InputError: in float16, which needs a loss scaler: the other libraries have their own.
        """
        dtype = plain.autocast_dtype
        if dtype not in (None, torch.bfloat16):
            raise InputError(
                f"{self.name} is measured in fp32 and bfloat16, and this run is in {dtype}.",
                parameter="amp_dtype",
            )
        form = (
            by_hand.as_it_comes(plain)
            if self.mode is None
            else by_hand.at_its_best(plain, process_group.device(), self.mode)
        )
        if self.name != EAGER:
            cache.keep_headers()
        build = {
            EAGER: _eager,
            "torch.compile": _torch_compile,
            "accelerate": _accelerate,
            "fabric": _fabric,
        }[self.name]
        return build(plain, form)


def _eager(plain: Plain, form: Form) -> Prepared:
    device = process_group.device()
    plain.model.to(device)
    return Prepared(
        plain.model,
        _batches(plain.loader, device, form),
        form.build_optimizer(),
        plain.autocast_dtype,
        form.done,
    )


def _torch_compile(plain: Plain, form: Form) -> Prepared:
    device = process_group.device()
    plain.model.to(device)
    plain.model.compile(mode=form.mode)
    form.done["compiler"] = f"torch.compile {torch.__version__}, mode {form.mode}"
    return Prepared(
        plain.model,
        _batches(plain.loader, device, form),
        form.build_optimizer(),
        plain.autocast_dtype,
        form.done,
    )


def _accelerate(plain: Plain, form: Form) -> Prepared:
    import accelerate
    from accelerate.utils import TorchDynamoPlugin

    precision = "bf16" if plain.autocast_dtype else "no"
    plugin = TorchDynamoPlugin(backend="inductor", mode=form.mode)
    accelerator = accelerate.Accelerator(mixed_precision=precision, dynamo_plugin=plugin)
    wrapped, update, batches = accelerator.prepare(
        plain.model, form.build_optimizer(), plain.loader
    )
    form.done["compiler"] = (
        f"accelerate {accelerate.__version__}, dynamo plugin, backend inductor, mode {form.mode}"
    )
    return Prepared(
        wrapped,
        _batches(batches, accelerator.device, form),
        update,
        None,
        form.done,
        accelerator.backward,
    )


def _fabric(plain: Plain, form: Form) -> Prepared:
    import lightning_fabric

    fabric = lightning_fabric.Fabric(
        devices=1, precision="bf16-mixed" if plain.autocast_dtype else "32-true"
    )
    fabric.launch()
    compiled: Any = torch.compile(plain.model, mode=form.mode)  # a compiled module is a Module
    wrapped, update = fabric.setup(compiled, form.build_optimizer())
    batches = fabric.setup_dataloaders(plain.loader)
    form.done["compiler"] = (
        f"lightning-fabric {lightning_fabric.__version__}, torch.compile, mode {form.mode}"
    )
    return Prepared(
        wrapped, _batches(batches, fabric.device, form), update, None, form.done, fabric.backward
    )
