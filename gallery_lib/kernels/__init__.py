"""Own CUDA kernels, each registered as a `torch.library` operator in the namespace `gallery`.

A kernel consists of a `.cu` file in `cuda/` and a Python file in this folder. The Python file holds
the operator, its plain-torch reference, and a function that returns the launch as plain data
(`runtime/launch.py`). The reference runs on the CPU, and is the announced fallback on CUDA. Since
launches are plain data, the tests run the very same sources and arguments on the CPU
(`tests/cuda_on_host/`).

- `runtime/nvrtc.py` compiles sources at first use with NVRTC, for which no GPU is needed.
- `runtime/fallback.py` decides and announces whether kernels are launched.
- `runtime/usage.py` decides whether a run calls our operators in place of torch's.
- `runtime/call_counts.py` counts which operators ran.
- `resources.py` tables the registers and spills of every kernel.
"""
