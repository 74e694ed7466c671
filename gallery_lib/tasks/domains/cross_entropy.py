"""The cross-entropy of the tasks whose model gives a row of logits for each label: torch's, or our kernel where a run uses it.

Ours reads 16-bit logits as they are, and computes in fp32; for torch's they are made fp32 first. Float64 stays float64.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gallery_lib.kernels.cross_entropy import cross_entropy as own_cross_entropy
from gallery_lib.kernels.runtime import usage


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """The loss of logits [N, C] and labels int64 [N], at least in fp32; the arguments are those of `F.cross_entropy`."""
    names = {
        "ignore_index": ignore_index,
        "label_smoothing": label_smoothing,
        "reduction": reduction,
    }
    if usage.used(logits.device):
        return own_cross_entropy(logits, labels, **names)  # type: ignore[arg-type]
    return F.cross_entropy(
        logits if logits.dtype is torch.float64 else logits.float(), labels, **names
    )  # type: ignore[arg-type]
