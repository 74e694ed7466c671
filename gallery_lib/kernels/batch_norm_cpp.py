"""Batch norm (+ residual) + ReLU in C++ on the CPU: `cpu/batch_norm.cpp`.

Batches are fp32 or bf16. Threads are OpenMP's, which torch's operators and compiled code use too.
The number of threads changes no bit of a result.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from gallery_lib.kernels.batch_norm_buffers import in_channels_last, new_like, new_pair
from gallery_lib.kernels.runtime import cpu_library, cpu_tensors

SOURCE, OPTIONS = "batch_norm.cpp", ("-fopenmp",)
_COLUMNS = (
    *("x", "gradient", "more", "result", "residual", "written"),
    *("mean", "second", "weight", "bias", "first_sum", "second_sum"),
)
"""Tensors of a call, in the order of `Column` in `cpu/batch_norm.h`."""


class _Arguments(ctypes.Structure):
    _fields_ = (
        ("descriptors", ctypes.c_void_p),
        *((name, ctypes.c_longlong) for name in ("length", "given", "threads", "flag")),
        *((name, ctypes.c_double) for name in ("number", "epsilon")),
    )


def available() -> bool:
    """Return whether the C++ could be built here; if not, a warning has said so."""
    return cpu_library.library(SOURCE, *OPTIONS) is not None


def _call(
    function: str,
    *tensors: Tensor | None,
    flag: bool = False,
    number: float = 0.0,
    epsilon: float = 0.0,
) -> None:
    """Call a function with the tensors of `_COLUMNS`, each of which may be None.

    Raises:
        cpu_tensors.Refused: for tensors that do not fit together; nothing is changed then.
    """
    row = [tensor for tensor in tensors if tensor is not None]
    given = sum(1 << place for place, tensor in enumerate(tensors) if tensor is not None)
    descriptors = cpu_tensors.described(row)
    threads = torch.get_num_threads()
    arguments = _Arguments(*descriptors.buffer_info(), given, threads, flag, number, epsilon)
    library = cpu_library.library(SOURCE, *OPTIONS)
    names = [n for n, t in zip(_COLUMNS, tensors, strict=False) if t is not None]
    cpu_tensors.call(library, f"batch_norm_{function}", arguments, row, names)


def _suits(x: Tensor, others: tuple[Tensor | None, ...], values: tuple[Tensor | None, ...]) -> bool:
    """Return whether batches like x and fp32 values [C] are what the C++ is written for."""
    return (
        x.dtype in (torch.bfloat16, torch.float32)
        and x.numel() > 0
        and all(other is None or other.dtype is x.dtype for other in others)
        and all(
            value is None or (value.dtype is torch.float32 and value.is_contiguous())
            for value in values
        )
        and available()
    )


def takes_partial(x: Tensor) -> bool:
    """Return whether `partial` does the work."""
    return _suits(x, (), ())


def partial(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and sum of squared deviations [C]."""
    mean, squares = new_pair(x)
    _call("statistics", in_channels_last(x), *[None] * 5, mean, squares, flag=True)
    return mean, squares


def takes_statistics(x: Tensor, *rest: Any) -> bool:
    """Return whether `statistics` does the work."""
    return _suits(x, (), rest[:2]) and (rest[2] is None or rest[2].dtype is torch.int64)


def statistics(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    batches: Tensor | None,
    momentum: float | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Return mean and inverse deviation [C]; update the running statistics."""
    if batches is not None:
        batches.add_(1)
    share = momentum or 0.0
    if momentum is None and batches is not None:
        share = 1 / int(batches)
    mean, inverse_deviation = new_pair(x)
    changed = (running_mean, running_var)
    columns = (in_channels_last(x), *[None] * 5, mean, inverse_deviation, None, None, *changed)
    _call("statistics", *columns, number=share, epsilon=eps)
    torch.autograd.graph.increment_version([t for t in (*changed, batches) if t is not None])
    return mean, inverse_deviation


def takes_relu(x: Tensor, residual: Tensor | None, *channels: Tensor | None) -> bool:
    """Return whether `relu` does the work."""
    return _suits(x, (residual,), channels)


def relu(x: Tensor, residual: Tensor | None, *channels: Tensor | None) -> Tensor:
    """Return ReLU of the normalised x + residual."""
    result = new_like(x)
    beside = None if residual is None else in_channels_last(residual)
    _call("forward", in_channels_last(x), None, None, None, beside, result, *channels)
    return result


def takes_sums(gradient: Tensor, x: Tensor, result: Tensor | None, *channels: Any) -> bool:
    """Return whether `sums` does the work."""
    return _suits(x, (gradient, result), channels)


def sums(
    gradient: Tensor, x: Tensor, result: Tensor | None, *channels: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of weight and bias [C], and the gradient behind ReLU."""
    return _sums(gradient, None, x, result, *channels)


def takes_sums_of_two(first: Tensor, second: Tensor, x: Tensor, result: Tensor, *c: Any) -> bool:
    """Return whether `sums_of_two` does the work."""
    return _suits(x, (first, second, result), c)


def sums_of_two(
    first: Tensor, second: Tensor, x: Tensor, result: Tensor, *channels: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `sums` returns for the gradient first + second."""
    return _sums(first, in_channels_last(second), x, result, *channels)


def _sums(
    gradient: Tensor,
    more: Tensor | None,
    x: Tensor,
    result: Tensor | None,
    *channels: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    batches: list[Tensor | None] = [in_channels_last(x), in_channels_last(gradient), more]
    batches += [None if result is None else in_channels_last(result), None]
    masked = None if result is None else new_like(x)
    of_weight, of_bias = new_pair(x)
    _call("sums", *batches, masked, *channels, of_weight, of_bias)
    return of_weight, of_bias, x.new_empty(0) if masked is None else masked


def takes_gradient(gradient: Tensor, masked: bool, x: Tensor, *rest: Any) -> bool:
    """Return whether `gradient_of_input` does the work."""
    return _suits(x, (gradient,), rest[:-1])


def gradient_of_input(gradient: Tensor, masked: bool, x: Tensor, *rest: Any) -> Tensor:
    """Return the gradient of x from its sums."""
    *values, count = rest
    of_x, number = new_like(x), 0.0 if count is None else float(count)
    batches = (in_channels_last(x), in_channels_last(gradient), None, None, None, of_x)
    _call("gradient", *batches, *values, flag=masked, number=number)
    return of_x
