"""Own CUDA kernels, each a `torch.library` operator in the namespace `gallery`.

A kernel is a `.cu` file in `cuda/` and a Python file beside this one, which holds the operator, its plain-torch
reference (what runs on the CPU, and the announced fallback on CUDA) and a function that says how the kernel is to be
launched: plain data (`launch.py`), so that the tests run the very same sources and arguments on the CPU
(`tests/cuda_on_host/`). Sources are compiled at first use with NVRTC (`compilation.py`), for which no GPU is needed;
`fallback.py` decides and announces whether kernels are launched, `usage.py` whether a run calls our operators in place of
torch's, `calls.py` counts which ran; `resources.py` tables their registers and spills.
"""
