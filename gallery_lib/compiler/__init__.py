"""The accelerated backend's compiler: what `--compiler-opt` switches on for a model's code.

One file per technique, each usable alone:

- `backend`: the compiler behind a small registry, Inductor by default, for a module's calls,
  whoever wrote its `forward`. `cache` keeps its code on disk.
- `cuda_graphs`: captured graphs on CUDA, with outputs and gradients that a caller may keep.
- `notices`: what the user is told about compilation. `compilations` tells when it happens.
- `calls`: the calls of a module, routed through a function.
- `passes`: convolutions in channels_last inside the graph (`channels_last`); graph passes for CPUs
  (`emulated_bf16`, `short_attention`, `small_convolutions`,
  `mixed_products`, `large_batch_norms`, `dropout_masks`, `max_pooling`, `vector_masks`,
  `upsampling`), written with `graph_writer`; and backward passes that may keep their graphs
  (`kept_graphs`).

Whether a model gains from channels_last, and the host allocator, are in `gallery_lib.memory`.
Whether a run has any of this on is decided in a lower layer, `gallery_lib.config.switches`.
"""

from gallery_lib.config.switches import compiler_enabled, kernels_enabled

__all__ = ["compiler_enabled", "kernels_enabled"]
