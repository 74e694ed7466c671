"""Operators for products in bfloat16 that torch has not: operands in fp32, and results in fp32.

`gallery::mixed_product` is for weights. Under autocast a weight is copied to bfloat16, multiplied,
and its gradient copied back to fp32. Where a batch has few rows these copies take longer than the
products. Here C++ (`cpu/mixed_product.cpp`) rounds fp32 operands as it reads them, and can store a
result as fp32. Values are those of autocast: operands are rounded to bfloat16, sums are fp32, and a
result is rounded to bfloat16 once. Numbers below 1.2e-38 count as 0, as in the processor's
instruction.

`gallery::exact_products` multiplies batches of bfloat16 matrices, and does not round: attention's
scores are kept in fp32. Without it both operands are copied to fp32, whose units are slower.

The C++ needs AVX512-BF16. Elsewhere plain torch does the work.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gallery_lib.kernels.runtime import cpp
from gallery_lib.kernels.runtime.launch import LONG
from gallery_lib.kernels.runtime.operators import register
from gallery_lib.system import hardware

_CPP = cpp.Functions("mixed_product.cpp", "-fopenmp", tensors=LONG, threads=LONG)
_COLUMNS = ("left", "right", "result", "bias")
_DTYPES = (torch.float32, torch.bfloat16)


def reason_not_available() -> str | None:
    """Return why the C++ does not do the work on this processor, or None."""
    if "avx512_bf16" not in hardware.cpu_flags():
        return "the processor has no bfloat16 units of AVX-512"
    if not _CPP.available():
        return "its C++ could not be built"
    return None


def _takes(left: Tensor, right: Tensor, bias: Tensor | None, wide: bool) -> bool:
    return (
        all(t is None or (t.dtype in _DTYPES and t.numel() > 0) for t in (left, right, bias))
        and reason_not_available() is None
    )


def _in_cpp(left: Tensor, right: Tensor, bias: Tensor | None, wide: bool) -> Tensor:
    left, right = (_without_gaps(matrix) for matrix in (left, right))
    tensors = [left, right, _fake(left, right, bias, wide)]
    if bias is not None:
        tensors.append(bias.to(torch.bfloat16).float())
    multiply(tensors)
    return tensors[2]


def multiply(tensors: Sequence[Tensor], function: str = "mixed_product") -> None:
    """Write a product, by the C++.

    Args:
        tensors: left [M, K] and right [K, N], fp32 or bf16, each without gaps, in any order of
            dimensions; result [M, N], fp32 or bf16, contiguous, which is written; and perhaps a
            bias [N], fp32.
        function: `exact_products` takes batches of matrices [B, M, K] and [B, K, N]. Its result is
            fp32, and not rounded; there is no bias.

    Raises:
        cpp.Refused: for tensors that do not fit together; nothing is changed then.
    """
    _CPP.call(function, _COLUMNS, [tensors], len(tensors), torch.get_num_threads())


def _without_gaps(matrix: Tensor) -> Tensor:
    """Return the matrix or matrices, copied unless they fill the memory that they span."""
    dense = matrix.is_contiguous() or matrix.mT.is_contiguous()
    return matrix if dense else matrix.contiguous()


def _fake(left: Tensor, right: Tensor, bias: Tensor | None, wide: bool) -> Tensor:
    return left.new_empty(
        (left.shape[0], right.shape[1]), dtype=torch.float32 if wide else torch.bfloat16
    )


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
    cpp=_in_cpp,
    takes_cpp=_takes,
)


def _batches_in_cpp(left: Tensor, right: Tensor) -> Tensor:
    left, right = (_without_gaps(matrices) for matrices in (left, right))
    result = _fake_batches(left, right)
    multiply([left, right, result], "exact_products")
    return result


def _fake_batches(left: Tensor, right: Tensor) -> Tensor:
    return left.new_empty((*left.shape[:2], right.shape[2]), dtype=torch.float32)


def _reference_of_batches(left: Tensor, right: Tensor) -> Tensor:
    """Return left [B, M, K] times right [B, K, N], rounded to bfloat16, in fp32."""
    left, right = (each.to(torch.bfloat16).float() for each in (left, right))
    return torch.bmm(left, right)


register(
    "exact_products",
    "(Tensor left, Tensor right) -> Tensor",
    reference=_reference_of_batches,
    fake=_fake_batches,
    cpp=_batches_in_cpp,
    takes_cpp=lambda left, right: _takes(left, right, None, True),
)
