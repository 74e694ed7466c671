"""Own kernels, each registered as a `torch.library` operator in the namespace `gallery`.

Every kernel has the same form. Say its name is NAME:

- `cuda/NAME.cu`: the kernels. Each takes one structure by value.
- `NAME_launch.py`: functions that return launches as plain data (`runtime.launch`).
- `NAME_reference.py`: the same work in plain torch, also in float64.
- `NAME.py`: the function that others call, which checks its arguments, and the operator.

Small kernels have all three in `NAME.py`. The operator is one call of `runtime.operators.register`:

    register(
        "cross_entropy_gradient",
        "(Tensor logits, Tensor labels, ..., Tensor of_loss) -> Tensor",
        reference=reference_gradient,  # on the CPU, and wherever no kernel runs
        kernel=_gradient_kernel,  # allocates the results and enqueues the launches
        device=kernel_device,  # None for dtypes that no kernel is compiled for
        fake=_gradient,  # results without values, for torch.compile
    )

Since launches are plain data, the tests run the very same sources and arguments on the CPU
(`tests/cuda_on_host/`).

- `runtime/nvrtc.py` compiles sources at first use with NVRTC, for which no GPU is needed.
- `runtime/fallback.py` decides and announces whether kernels are launched.
- `runtime/usage.py` decides whether a run calls our operators in place of torch's.
- `runtime/call_counts.py` counts which operators ran.
- `cpu_optimizers.py`, `batch_norm_cpp.py`, `compression_cpp.py`, `cross_entropy_cpp.py`,
  `dropout_mask.py`, `max_pool.py` and `mixed_product.py` call C++ of `cpu/`.
- `resources.py` tables the registers and spills of every kernel in `catalogue.py`.
"""
