"""Recipes by words: how each process of a measurement makes its model ready.

The words travel in an environment variable. No words mean `accelerate()`, as the run's options ask.
The name of a peer (peers.py) means that library as it comes, or at its best with `best` and a mode
of torch.compile. Names of techniques mean these techniques of the backend and no others, as in a
waterfall (ablation).
"""

from __future__ import annotations

from collections.abc import Sequence

from gallery_lib import optim
from gallery_lib.acceleration import accelerate, techniques
from gallery_lib.compiler import cache
from gallery_lib.config import Config
from gallery_lib.kernels import mixed_product
from gallery_lib.measure.variants import by_hand
from gallery_lib.measure.variants.peers import MODULES, Peer
from gallery_lib.memory import allocator
from gallery_lib.memory.layout import takes_any_layout
from gallery_lib.system import hardware
from gallery_lib.train.recipe import Plain, Prepared, Recipe, lay_out_batches

FUSED = "fused-optimizer"
EMULATED = "bf16-on-fp32-units"
SHORT_ATTENTION = "short-attention"
WHOLE_UPSAMPLING = "whole-upsampling"
SMALL_CONVOLUTIONS = "small-convolutions"
VECTOR_MASKS = "vector-masks"
MAX_POOLING = "max-pooling"
LARGE_BATCH_NORMS = "large-batch-norms"
MIXED_PRODUCTS = "mixed-products"
NICE_LOADING = "nice-loading"
TECHNIQUES = (
    "layout",
    "allocator",
    "compiler",
    EMULATED,
    SHORT_ATTENTION,
    WHOLE_UPSAMPLING,
    MAX_POOLING,
    LARGE_BATCH_NORMS,
    VECTOR_MASKS,
    SMALL_CONVOLUTIONS,
    MIXED_PRODUCTS,
    NICE_LOADING,
    FUSED,
)
"""All techniques, in the order in which a waterfall adds them."""


_BEST = "best"


def best_form(peer: str, mode: str = by_hand.DEFAULT_MODE) -> list[str]:
    """Return the words for a peer at its best, compiled in `mode`."""
    return [peer, _BEST, mode]


class Techniques(Recipe):
    """Preparation by `accelerate()` with the named techniques, and none of the others."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def prepare(self, plain: Plain) -> Prepared:
        """Return the model ready to train with these techniques."""
        config = Config.plain()
        if "layout" not in self.names:
            config.memory.layout = "contiguous"
        elif takes_any_layout(plain.model):
            config.memory.layout = "channels_last"
        else:
            config.memory.layout = "auto"
        config.memory.allocator = "allocator" in self.names
        config.compiler.enabled = "compiler" in self.names
        config.compiler.bf16_on_fp32_units = EMULATED in self.names
        config.compiler.short_attention = SHORT_ATTENTION in self.names
        config.compiler.whole_upsampling = WHOLE_UPSAMPLING in self.names
        config.compiler.max_pooling = MAX_POOLING in self.names
        config.compiler.large_batch_norms = LARGE_BATCH_NORMS in self.names
        config.compiler.vector_masks = VECTOR_MASKS in self.names
        config.compiler.small_convolutions = SMALL_CONVOLUTIONS in self.names
        config.compiler.mixed_products = MIXED_PRODUCTS in self.names
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
        peer, *best = words
        return Peer(peer, mode=best[1] if best else None)
    return Techniques(words)


def variables_of(words: Sequence[str]) -> dict[str, str]:
    """Return the variables of the processes: the folder of compiled code, the allocator's settings.

    The folder of compiled code is the same for all.
    """
    if _BEST in words:
        return cache.cache_variables() | by_hand.allocator_variables(hardware.device_type())
    return cache.cache_variables() | (
        allocator.allocator_variables() if "allocator" in words else {}
    )


def reason_not_applied(technique: str, amp_level: str) -> str | None:
    """Return why a technique would do nothing on this machine, or None."""
    on_cpu = hardware.device_type() == "cpu"
    if technique == "layout" and not hardware.prefers_channels_last(hardware.device_type()):
        return "convolutions on a CPU without AVX-512 gain nothing from channels_last"
    if technique == "allocator":
        return (
            allocator.reason_not_applied()
            if on_cpu
            else "torch has an allocator of its own on CUDA"
        )
    if technique == SHORT_ATTENTION and not on_cpu:
        return "torch's own attention is used on CUDA"
    if technique == WHOLE_UPSAMPLING and not on_cpu:
        return "images are enlarged as the compiler writes it on CUDA"
    if technique == VECTOR_MASKS and not on_cpu:
        return "each thread of a CUDA device has its own element of a mask"
    if technique == MAX_POOLING and not on_cpu:
        return "images are pooled as the compiler writes it on CUDA"
    if technique == LARGE_BATCH_NORMS:
        return (
            _why_no_large_batch_norms(amp_level)
            if on_cpu
            else "batch norms are the compiler's on CUDA"
        )
    if technique == NICE_LOADING and not on_cpu:
        return "the step's threads need few cores on CUDA"
    if technique == SMALL_CONVOLUTIONS:
        return (
            _why_no_small_convolutions(amp_level) if on_cpu else "convolutions are cuDNN's on CUDA"
        )
    if technique == MIXED_PRODUCTS:
        return _why_no_mixed_products(amp_level) if on_cpu else "products are cuBLAS's on CUDA"
    if technique == EMULATED and (
        amp_level == "O0" or not on_cpu or hardware.computes_in_bf16("cpu")
    ):
        return "the run is in fp32" if amp_level == "O0" else "the device has bfloat16 units"
    return None


def _why_no_small_convolutions(amp_level: str) -> str | None:
    # Imported here: passes need torch's compiler, whose import takes a second.
    from gallery_lib.compiler.passes import small_convolutions

    return "the run is in fp32" if amp_level == "O0" else small_convolutions.reason_not_applied()


def _why_no_large_batch_norms(amp_level: str) -> str | None:
    from gallery_lib.compiler.passes import large_batch_norms

    return "the run is in fp32" if amp_level == "O0" else large_batch_norms.reason_not_applied()


def _why_no_mixed_products(amp_level: str) -> str | None:
    return "the run is in fp32" if amp_level == "O0" else mixed_product.reason_not_available()
