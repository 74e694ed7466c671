"""`gallery::batch_norm_relu_sums_of_two`: `batch_norm_relu_sums` of a gradient in two parts.

A result that two layers read has two gradients. Added up first, their sum is written and read once
more. Here the pass over them that sums adds them as well. The compiler's graph pass
`compiler.passes.two_gradients` calls it, on CPUs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gallery_lib.kernels import (
    batch_norm,  # noqa: F401  registers batch_norm_relu_sums
    batch_norm_cpp,
)
from gallery_lib.kernels.batch_norm_buffers import new_like, new_pair
from gallery_lib.kernels.runtime.operators import Cpp, register


def _added_first(first: Tensor, second: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ops.gallery.batch_norm_relu_sums(first + second, *rest)


def _fake(first: Tensor, second: Tensor, x: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return *new_pair(x), new_like(x)


register(
    "batch_norm_relu_sums_of_two",
    "(Tensor first, Tensor second, Tensor x, Tensor result, Tensor mean, "
    "Tensor inverse_deviation, Tensor? weight, Tensor? bias) -> (Tensor, Tensor, Tensor)",
    reference=_added_first,
    kernel=_added_first,
    device=lambda first, *_: None,
    fake=_fake,
    cpp=Cpp(batch_norm_cpp.takes_sums_of_two, batch_norm_cpp.sums_of_two),
)
