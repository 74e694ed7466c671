"""The accelerated backend's compiler: what `--compiler-opt` switches on for a model's code.

One file per technique, each usable alone:

- `backend`: the compiler behind a small registry, Inductor by default. `cache` keeps its code on
  disk.
- `background`: training that begins uncompiled while `background_process` fills the cache.
- `in_place`: compilation of a module's calls, whoever wrote its `forward`.
- `cuda_graphs`: captured graphs on CUDA, with outputs and gradients that a caller may keep.
- `frozen_weights`: layers that are unfrozen later, for releases of torch that do not notice.
- `repeated_blocks`: blocks that a model repeats, compiled once.
- `activation_checkpointing`: only a part of the activations kept for the backward pass.
- `notices`: what the user is told about compilation. `compilations` tells when it happens.
- `calls`: the calls of a module, routed through a function.
- `passes`: graph passes for CPUs (`emulated_bf16`, `short_attention`, `small_convolutions`,
  `mixed_products`, `large_batch_norms`, `dropout_masks`, `max_pooling`, `vector_masks`,
  `upsampling`), written with `graph_writer`; and backward passes that may keep their graphs
  (`kept_graphs`).
- `fusion`: BatchNorm + add + ReLU as one operator (`batch_norm`), with the patterns of
  `torchvision_models` and `timm_models`.

Memory layout (channels_last) and the host allocator are in `gallery_lib.memory`. Whether a run has
any of this on is decided in a lower layer, `gallery_lib.config.switches`.
"""

from gallery_lib.config.switches import compiler_enabled, kernels_enabled

__all__ = ["compiler_enabled", "kernels_enabled"]
