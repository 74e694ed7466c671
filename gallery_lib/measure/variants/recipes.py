"""Recipes by words: how each process of a measurement makes its model ready.

The words travel in an environment variable. No words mean `accelerate()`, as the run's options ask.
The name of a peer (peers.py) means that library. Names of techniques mean these techniques of the
backend and no others, as in a waterfall (ablation).
"""

from __future__ import annotations

from collections.abc import Sequence

from gallery_lib import optim
from gallery_lib.acceleration import accelerate, techniques
from gallery_lib.compiler import cache
from gallery_lib.config import Config
from gallery_lib.kernels import mixed_product
from gallery_lib.measure.variants import peers
from gallery_lib.memory import allocator
from gallery_lib.memory.layout import takes_any_layout
from gallery_lib.system import hardware
from gallery_lib.train.recipe import Plain, Prepared, Recipe, lay_out_batches

FUSED = "fused-optimizer"
EMULATED = "bf16-on-fp32-units"
LARGE_BATCH_NORMS = "large-batch-norms"
SMALL_CONVOLUTIONS = "small-convolutions"
MIXED_PRODUCTS = "mixed-products"
NICE_LOADING = "nice-loading"
FOR_CPUS = (
    *(EMULATED, "short-attention", "whole-upsampling", "max-pooling", LARGE_BATCH_NORMS),
    *("vector-masks", SMALL_CONVOLUTIONS, MIXED_PRODUCTS),
)
"""Graph passes for CPUs, named after their options in `config.Compiler`."""
TECHNIQUES = ("layout", "allocator", "compiler", *FOR_CPUS, NICE_LOADING, FUSED)
"""All techniques, in the order in which a waterfall adds them."""
_ONLY_IN_BF16 = (EMULATED, LARGE_BATCH_NORMS, SMALL_CONVOLUTIONS, MIXED_PRODUCTS)


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
    if words[0] in peers.MODULES:
        return peers.Peer(words[0])
    return Techniques(words)


def variables_of(words: Sequence[str]) -> dict[str, str]:
    """Return the variables of the processes: the folder of compiled code, the allocator's settings.

    A peer has glibc keep large blocks on the CPU, as our allocator technique does.
    """
    keeps = "allocator" in words or (
        any(word in peers.MODULES for word in words) and hardware.device_type() == "cpu"
    )
    return cache.cache_variables() | (allocator.allocator_variables() if keeps else {})


def reason_not_applied(technique: str, amp_level: str) -> str | None:
    """Return why a technique would do nothing on this machine, or None."""
    device_type = hardware.device_type()
    if technique == "layout" and not hardware.prefers_channels_last(device_type):
        return "convolutions on a CPU without AVX-512 gain nothing from channels_last"
    if amp_level == "O0" and technique in _ONLY_IN_BF16:
        return "the run is in fp32"
    if device_type == "cuda":
        for_cpus = technique in (*FOR_CPUS, "allocator", NICE_LOADING)
        return "it is for steps on a CPU" if for_cpus else None
    if technique == EMULATED and hardware.computes_in_bf16("cpu"):
        return "the device has bfloat16 units"
    if technique == "allocator":
        return allocator.reason_not_applied()
    if technique == MIXED_PRODUCTS:
        return mixed_product.reason_not_available()
    if technique in (LARGE_BATCH_NORMS, SMALL_CONVOLUTIONS):
        # Imported here: passes need torch's compiler, whose import takes a second.
        from gallery_lib.compiler.passes import large_batch_norms, small_convolutions

        norms = technique == LARGE_BATCH_NORMS
        return (large_batch_norms if norms else small_convolutions).reason_not_applied()
    return None
