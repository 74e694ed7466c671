"""Cross-entropy of a row of logits for each label: torch's, or our kernel for large vocabularies.

Our kernel reads 16-bit logits as they are, and computes in fp32. For torch's function they are
converted to fp32 first. float64 stays float64.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gallery_lib.kernels.cross_entropy import cross_entropy as own_cross_entropy
from gallery_lib.kernels.runtime import usage

LARGE = 2**20
"""Elements of the logits from which our kernel is used.

Below, either takes a GPU some microseconds, and torch's function takes the host 0.1 ms less.
"""


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """Return the loss of logits [N, C] and labels int64 [N], at least in fp32.

    The keyword arguments are those of `F.cross_entropy`.
    """
    names = {
        "ignore_index": ignore_index,
        "label_smoothing": label_smoothing,
        "reduction": reduction,
    }
    if logits.numel() >= LARGE and usage.used(logits.device):
        return own_cross_entropy(logits, labels, **names)  # type: ignore[arg-type]
    exact = logits if logits.dtype is torch.float64 else logits.float()
    return F.cross_entropy(exact, labels, **names)  # type: ignore[arg-type]
