"""Registration, compilation and launch of our operators, and the fallback to plain torch.

`operators` registers an operator with all its implementations, and counts which of them ran.
`nvrtc` compiles CUDA sources and `cpp` C++ sources, at first use; `kept_code` keeps both on disk
with digests. `launch` packs tensors and carries out launches. `usage` decides whether a kernel
runs.
"""
