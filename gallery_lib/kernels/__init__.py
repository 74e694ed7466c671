"""Own kernels, each registered as a `torch.library` operator in the namespace `gallery`.

An operator NAME is one file, `NAME.py`, beside its sources:

- `cuda/NAME.cu`: the kernels. Each takes one structure by value.
- `cpu/NAME.cpp`: C++ for the CPU, where it pays.
- `NAME.py`: the function that others call, which checks its arguments, then for each operator the
  same work in plain torch (also in float64), by the kernel and in C++. Batch norm and the optimizer
  step are two files each.

The operator is one call of `runtime.operators.register`:

    register(
        "cross_entropy_gradient",
        "(Tensor logits, Tensor labels, ..., Tensor of_loss) -> Tensor",
        reference=_gradient_reference,  # on the CPU, and wherever no kernel runs
        kernel=_gradient_kernel,  # allocates the results and enqueues the launches
        device=kernel_device,  # None for dtypes that no kernel is compiled for
        fake=_new_gradient,  # results without values, for torch.compile
        cpp=_gradient_cpp,  # on the CPU
        takes_cpp=takes_cpp,  # where this is True
    )

Since launches are plain data, the tests run the very same functions and sources on the CPU
(`tests/cuda_on_host/`).

- `runtime/nvrtc.py` compiles sources at first use with NVRTC, for which no GPU is needed.
- `runtime/usage.py` decides whether a run calls our operators in place of torch's, and decides and
  announces whether kernels are launched.
- `runtime/operators.py` counts which operators ran.
"""
