"""The accelerated backend's compiler: what `--compiler-opt` switches on for a model's code.

- `backend`: the compiler behind a small registry, Inductor by default, for a module's calls,
  whoever wrote its `forward`; what the user is told about compilation. `cache` keeps its code.
- `by_shape`: code of their own for input shapes that come again.
- `cuda_graphs`: tensors that a caller keeps, and what cannot be captured.
- `calls`: the calls of a module, routed through functions.
- `passes`: graph passes inside Inductor, one file each.

Whether a model gains from channels_last, and the host allocator, are in `gallery_lib.memory`.
`gallery_lib.config.switches` decides whether a run has any of this on.
"""
