"""The accelerated backend: what `--compiler-opt` switches on.

One file per technique, each usable alone: `layout` (channels_last), `allocator` (large host blocks are kept), `backend` (the
compiler behind a small registry, Inductor by default, with its cache on disk) with `regions` (repeated blocks compiled once) and
`recomputation` (a part of the activations kept), `first_call` (what is said about compilation), graph passes for CPUs
(`emulated_bf16`, `short_attention`, `small_convolutions`, `upsampling`; what they write with: `graph_calls`), and
`fused_batch_norm` (BatchNorm + add + ReLU as one operator) with what it
knows of `fused_torchvision` and `fused_timm`. Whether this run has any of it on: `gallery_lib.config.switches`, which lies below.
"""

from gallery_lib.config.switches import compiler_enabled, kernels_enabled

__all__ = ["compiler_enabled", "kernels_enabled"]
