"""Variants of a run by words: how each process of a measurement makes its model ready.

The words travel in an environment variable. No words mean `accelerate()`, as the run's options ask.
Names of techniques mean these techniques of the backend and no others, as in a waterfall
(ablation). The name of a peer means a library that a user could pick instead, as somebody who tunes
by hand uses it. In bfloat16, or in fp32 without what is said of bfloat16:

- `eager`: autocast around forward pass and loss.
- `torch.compile`: `model.compile()`, and autocast. On a GPU also in its modes with CUDA graphs.
- `accelerate`, Hugging Face's: mixed precision bf16, the dynamo plugin with Inductor, `prepare`,
  `accelerator.backward(loss)`.
- `fabric`, Lightning's: precision bf16-mixed, `torch.compile(model)`, `setup`, `setup_dataloaders`,
  `fabric.backward(loss)`.

Each has torch's fused optimizer, where torch has one of that class; channels_last for weights and
images, where convolutions gain from it and the model's code is of libraries that take it; on the
CPU, glibc's tunables, with which it keeps large blocks; on a GPU, cuDNN's measured algorithms, and
copies of batches that do not wait: those of a loop of one's own are made ahead, as ours are.

Nothing else of this backend is used: not its optimizers, not its compiler passes, not its way of
loading. `accelerate` and `fabric` are optional: the extra `bench` installs them.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from gallery_lib import memory, optim
from gallery_lib.acceleration import accelerate, techniques
from gallery_lib.comm import process_group
from gallery_lib.compiler import cache
from gallery_lib.config import Config, Loader, Memory
from gallery_lib.data.loading.device_loader import DeviceLoader
from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.kernels import mixed_product
from gallery_lib.measure.bench_result import GRAPHS
from gallery_lib.memory import memory_format, takes_any_layout
from gallery_lib.system import hardware
from gallery_lib.train.session import Plain, Prepared, Recipe, lay_out_batches

FUSED = "fused-optimizer"
EMULATED = "bf16-on-fp32-units"
LARGE_BATCH_NORMS = "large-batch-norms"
SMALL_CONVOLUTIONS = "small-convolutions"
MIXED_PRODUCTS = "mixed-products"
WINOGRAD = "winograd"
NICE_LOADING = "nice-loading"
FOR_CPUS = (
    *(EMULATED, "short-attention", "whole-upsampling", "max-pooling", LARGE_BATCH_NORMS),
    *("vector-masks", SMALL_CONVOLUTIONS, MIXED_PRODUCTS, WINOGRAD),
)
"""Graph passes for CPUs, by their names in `config.compiler.without`, with dashes."""
# All techniques, in the order in which a waterfall adds them.
TECHNIQUES = ("layout", "allocator", "compiler", *FOR_CPUS, NICE_LOADING, FUSED)
_ONLY_IN_BF16 = (EMULATED, LARGE_BATCH_NORMS, SMALL_CONVOLUTIONS, MIXED_PRODUCTS)
MODULES = {
    "eager-best": "torch",
    "torch.compile-best": "torch",
    **dict.fromkeys(GRAPHS, "torch"),
    "accelerate-best": "accelerate",
    "fabric-best": "lightning_fabric",
}
"""The Python module that each peer needs."""


class Techniques(Recipe):
    """Preparation by `accelerate()` with the named techniques, and none of the others."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def prepare(self, plain: Plain) -> Prepared:
        """Return the model ready to train with these techniques."""
        config = Config.plain()
        if "layout" not in self.names:
            config.memory.layout = "contiguous"
        else:
            config.memory.layout = "channels_last" if takes_any_layout(plain.model) else "auto"
        config.memory.allocator = "allocator" in self.names
        config.compiler.enabled = "compiler" in self.names
        config.compiler.without = tuple(
            name.replace("-", "_") for name in FOR_CPUS if name not in self.names
        )
        config.loader.nice = Config().loader.nice if NICE_LOADING in self.names else 0
        wrapped, batches = accelerate(plain.model, plain.loader, config)
        optimizer = plain.build_optimizer(accelerated=FUSED in self.names)
        done = techniques(wrapped)
        lay_out_batches(plain.model, batches, done)
        if FUSED in self.names:
            done["optimizer"] = optim.kind(optimizer)
        return Prepared(wrapped, batches, optimizer, plain.autocast_dtype, done)


def recipe(words: Sequence[str]) -> Recipe:
    """Return the recipe that the words stand for."""
    if not words:
        return Recipe()
    if words[0] in MODULES:
        return Peer(words[0])
    return Techniques(words)


def variables_of(words: Sequence[str]) -> dict[str, str]:
    """Return the variables of the processes: the folder of compiled code, the allocator's settings.

    A peer has glibc keep large blocks on the CPU, as our allocator technique does.
    """
    keeps = "allocator" in words or (
        any(word in MODULES for word in words) and hardware.device_type() == "cpu"
    )
    return cache.cache_variables() | (memory.allocator_variables() if keeps else {})


def reason_not_applied(technique: str, amp_level: str) -> str | None:
    """Return why a technique would do nothing on this machine, or None."""
    device_type = hardware.device_type()
    if technique not in TECHNIQUES:
        raise InputError(
            f"`{technique}` is no technique of the backend.{did_you_mean(technique, TECHNIQUES)} "
            f"Known: {', '.join(TECHNIQUES)}.",
            parameter="techniques",
        )
    if technique == "layout" and not hardware.prefers_channels_last(device_type):
        return "convolutions on a CPU without AVX-512 gain nothing from channels_last"
    if amp_level == "O0" and technique in _ONLY_IN_BF16:
        return "the run is in fp32"
    if amp_level == "O1" and technique == WINOGRAD:
        return "the run is not in fp32"
    if device_type == "cuda":
        for_cpus = technique in (*FOR_CPUS, "allocator", NICE_LOADING)
        return "it is for steps on a CPU" if for_cpus else None
    if technique == EMULATED and hardware.computes_in_bf16("cpu"):
        return "the device has bfloat16 units"
    if technique == "allocator":
        return memory.reason_not_applied()
    if technique == MIXED_PRODUCTS:
        return mixed_product.reason_not_available()
    if technique in (LARGE_BATCH_NORMS, SMALL_CONVOLUTIONS, WINOGRAD):
        # Imported here: passes need torch's compiler, whose import takes a second.
        from gallery_lib.compiler import passes

        option = technique.replace("-", "_")
        return next(one for one in passes.ORDER if one.option == option).reason_not_applied()
    return None


# --------------------------------------------------------------------------------------------------
# Peers


def missing(name: str) -> str | None:
    """Return what the peer `name` lacks here, and how to install it; None when it can run."""
    if name in GRAPHS and hardware.device_type() != "cuda":
        return "does not apply: a mode of torch.compile for GPUs"
    if importlib.util.find_spec(MODULES[name]) is not None:
        return None
    return f"not installed: {MODULES[name].replace('_', '-')} (`prepare.sh --test` installs it)"


def _allocator(device: torch.device) -> str:
    """Return what was done, in the words that `process_spread` looks for."""
    if device.type != "cpu":
        return "torch's caching allocator (CUDA)"
    if reason := memory.reason_not_applied():
        return f"not applied: {reason}"
    kept = f"{memory.KEEPS} (GLIBC_TUNABLES)"
    return kept if memory.has_tunables() else "not applied: started without GLIBC_TUNABLES"


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
        self.keeps_loader = MODULES[name] == "torch"

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
        if device.type == "cuda":
            torch.backends.cudnn.benchmark = True
            done["cuDNN"] = "measures its algorithms"
        if self.name != "eager-best":
            cache.keep_headers()
        build: dict[str, Callable[..., Any]] = {
            "accelerate-best": _accelerate,
            "fabric-best": _fabric,
            "torch.compile-best": _torch_compile,
            **{name: partial(_torch_compile, mode=name.removesuffix("-best")) for name in GRAPHS},
        }
        wrapped, loader, optimizer, more = build.get(self.name, _eager)(plain, done)
        # What is the data set's own, its epochs and the end of its batches, is around the loader.
        unaided = Loader(nice=0) if self.keeps_loader else Loader(prefetch=0, nice=0)
        batches = DeviceLoader(loader, device, layout, unaided, shard=False)
        dtype = None if more else plain.autocast_dtype
        return Prepared(wrapped, batches, optimizer, dtype, done, **more)


# Model, loader and optimizer, and how a loss is propagated where the library does it.
_Made = tuple[Any, Any, Any, dict[str, Any]]


def _eager(plain: Plain, done: dict[str, str]) -> _Made:
    plain.model.to(process_group.device())
    return plain.model, plain.loader, _optimizer(plain, done), {}


def _torch_compile(plain: Plain, done: dict[str, str], mode: str = "default") -> _Made:
    plain.model.compile(mode=mode)
    done["compiler"] = f"torch.compile {torch.__version__}, mode {mode}"
    return _eager(plain, done)


def _accelerate(plain: Plain, done: dict[str, str]) -> _Made:
    import accelerate
    from accelerate.utils import DataLoaderConfiguration, TorchDynamoPlugin

    precision = "bf16" if plain.autocast_dtype else "no"
    plugin = TorchDynamoPlugin(backend="inductor")
    loading = DataLoaderConfiguration(non_blocking=process_group.device().type == "cuda")
    accelerator = accelerate.Accelerator(
        mixed_precision=precision, dynamo_plugin=plugin, dataloader_config=loading
    )
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
