"""Registration, compilation and launch of our operators, and the fallback to plain torch.

`operators` registers an operator with all its implementations. `nvrtc` compiles CUDA sources and
`cpu_library` C++ sources, at first use; `kept_code` keeps both on disk with digests, and `builds`
tells who waits. `launch` carries out a launch; `tensor_lists` and `cpu_tensors` describe tensors to
it. `usage` and `fallback` decide whether a kernel runs, and `call_counts` counts which did.
"""
