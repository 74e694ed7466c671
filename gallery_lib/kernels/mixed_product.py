"""Operator `gallery::mixed_product`: a product in bfloat16 of matrices that may lie in fp32.

Under autocast a weight is copied to bfloat16, multiplied, and its gradient copied back to fp32.
Where a batch has few rows these copies take longer than the products. Here C++
(`cpu/mixed_product.cpp`) rounds fp32 operands as it reads them, and can store a result as fp32.
Values are those of autocast: operands are rounded to bfloat16, sums are fp32, and a result is
rounded to bfloat16 once. Numbers below 1.2e-38 count as 0, as in the processor's instruction.

The C++ needs AVX512-BF16. Elsewhere plain torch does the work.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from gallery_lib.kernels.runtime import cpu_library, cpu_tensors
from gallery_lib.kernels.runtime.operators import Cpp, register
from gallery_lib.system import hardware

_SOURCE, _OPTIONS = "mixed_product.cpp", ("-fopenmp",)
_COLUMNS = ("left", "right", "result", "bias")
_DTYPES = (torch.float32, torch.bfloat16)


class _Arguments(ctypes.Structure):
    _fields_ = (
        ("descriptors", ctypes.c_void_p),
        *((name, ctypes.c_longlong) for name in ("length", "tensors", "threads")),
    )


def reason_not_available() -> str | None:
    """Return why the C++ does not do the work on this processor, or None."""
    if "avx512_bf16" not in hardware.cpu_flags():
        return "the processor has no bfloat16 units of AVX-512"
    if cpu_library.library(_SOURCE, *_OPTIONS) is None:
        return "its C++ could not be built"
    return None


def _takes(left: Tensor, right: Tensor, bias: Tensor | None, wide: bool) -> bool:
    tensors = [left, right] if bias is None else [left, right, bias]
    return (
        all(tensor.dtype in _DTYPES and tensor.numel() for tensor in tensors)
        and reason_not_available() is None
    )


def _in_cpp(left: Tensor, right: Tensor, bias: Tensor | None, wide: bool) -> Tensor:
    left, right = (_without_gaps(matrix) for matrix in (left, right))
    result = _fake(left, right, bias, wide)
    tensors = [left, right, result]
    if bias is not None:
        tensors.append(bias.to(torch.bfloat16).float())
    multiply(tensors)
    return result


def multiply(tensors: list[Tensor]) -> None:
    """Write a product, by the C++.

    Args:
        tensors: left [M, K] and right [K, N], fp32 or bf16, each without gaps, in any order of
            dimensions; result [M, N], fp32 or bf16, contiguous, which is written; and perhaps a
            bias [N], fp32.

    Raises:
        cpu_tensors.Refused: for tensors that do not fit together; nothing is changed then.
    """
    descriptors = cpu_tensors.described(tensors)
    arguments = _Arguments(*descriptors.buffer_info(), len(tensors), torch.get_num_threads())
    library = cpu_library.library(_SOURCE, *_OPTIONS)
    cpu_tensors.call(library, "mixed_product", arguments, tensors, _COLUMNS)


def _without_gaps(matrix: Tensor) -> Tensor:
    """Return the matrix, copied unless its elements fill the memory that they span."""
    dense = matrix.is_contiguous() or matrix.t().is_contiguous()
    return matrix if dense else matrix.contiguous()


def _fake(left: Tensor, right: Tensor, bias: Tensor | None, wide: bool) -> Tensor:
    dtype = torch.float32 if wide else torch.bfloat16
    return left.new_empty((left.shape[0], right.shape[1]), dtype=dtype)


def reference(left: Tensor, right: Tensor, bias: Tensor | None, wide: bool) -> Tensor:
    """Return left [M, K] times right [K, N], plus bias [N], in bfloat16; as fp32 if `wide`."""
    left, right = left.to(torch.bfloat16), right.to(torch.bfloat16)
    product = (
        torch.mm(left, right) if bias is None else torch.addmm(bias.to(torch.bfloat16), left, right)
    )
    return product.float() if wide else product


register(
    "mixed_product",
    "(Tensor left, Tensor right, Tensor? bias, bool wide) -> Tensor",
    reference=reference,
    fake=_fake,
    cpp=Cpp(_takes, _in_cpp),
)
