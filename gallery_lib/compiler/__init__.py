"""The accelerated backend: what `--compiler-opt` switches on.

One file per technique, each usable alone: `layout` (channels_last), `allocator` (large host blocks are kept),
`backend` (the compiler behind a small registry, Inductor by default, with its cache on disk), `first_call` (what is said
about compilation), `emulated_bf16` (a graph pass for CPUs without bfloat16 units) and `fused_batch_norm` (BatchNorm + add +
ReLU as one operator). `toggle` answers whether this run has any of it on.
"""

from gallery_lib.compiler.toggle import compiler_enabled, kernels_enabled

__all__ = ["compiler_enabled", "kernels_enabled"]
