"""Softmax cross-entropy in C++ on the CPU: `cpu/cross_entropy.cpp`.

Logits are fp32 or bf16, and arithmetic is in fp32, with sums in fp64. Threads are OpenMP's. Their
number changes no bit of a result.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from gallery_lib.kernels.runtime import cpu_library, cpu_tensors

DTYPES = (torch.float32, torch.bfloat16)
_SOURCE, _OPTIONS = "cross_entropy.cpp", ("-fopenmp",)
_FORWARD = ("logits", "labels", "loss", "log_sum", "above")
_BACKWARD = ("logits", "labels", "log_sum", "of_loss", "gradient")


class _Arguments(ctypes.Structure):
    _fields_ = (
        ("descriptors", ctypes.c_void_p),
        ("length", ctypes.c_longlong),
        ("ignored_label", ctypes.c_longlong),
        ("smoothing", ctypes.c_double),
        ("threads", ctypes.c_longlong),
    )


def available() -> bool:
    """Return whether the C++ could be built here; if not, a warning has said so."""
    return cpu_library.library(_SOURCE, *_OPTIONS) is not None


def takes(logits: Tensor, labels: Tensor, *_: object) -> bool:
    """Return whether the C++ does the work for these logits."""
    return (
        logits.dtype in DTYPES
        and logits.numel() > 0
        and labels.dtype is torch.int64
        and available()
    )


def forward(smoothing: float, ignore_index: int, tensors: Sequence[Tensor]) -> None:
    """Write the results of the forward pass.

    Args:
        smoothing: 0 to 1.
        ignore_index: label of the rows that are ignored.
        tensors: logits [N, C] without gaps and labels int64 [N]; then what is written, [N] each:
            loss and log_sum, fp32, and above, int32.

    Raises:
        cpu_tensors.Refused: for tensors that do not fit together; nothing is changed then.
    """
    _call("forward", smoothing, ignore_index, tensors, _FORWARD)


def backward(smoothing: float, ignore_index: int, tensors: Sequence[Tensor]) -> None:
    """Write the gradient of the logits.

    Args:
        smoothing: 0 to 1.
        ignore_index: label of the rows that are ignored.
        tensors: logits [N, C] without gaps, labels int64 [N], log_sum and of_loss, fp32 [N]; then
            the gradient, which is written, like the logits.

    Raises:
        cpu_tensors.Refused: as `forward` does.
    """
    _call("backward", smoothing, ignore_index, tensors, _BACKWARD)


def _call(
    function: str,
    smoothing: float,
    ignore_index: int,
    tensors: Sequence[Tensor],
    columns: Sequence[str],
) -> None:
    descriptors = cpu_tensors.described(tensors)
    arguments = _Arguments(
        *descriptors.buffer_info(), ignore_index, smoothing, torch.get_num_threads()
    )
    library = cpu_library.library(_SOURCE, *_OPTIONS)
    cpu_tensors.call(library, f"cross_entropy_{function}", arguments, tensors, columns)
