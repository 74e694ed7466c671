"""Cross-entropy of a row of logits for each label: torch's, or ours for large vocabularies.

Ours, a kernel on CUDA and C++ on the CPU, reads 16-bit logits as they are, and computes in fp32.
For torch's function they are converted to fp32 first. float64 stays float64.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gallery_lib.config.switches import kernels_enabled
from gallery_lib.kernels import cross_entropy as own
from gallery_lib.kernels.runtime import usage

# Elements of the logits from which ours is used. Below, either takes a GPU some microseconds, and
# torch's function takes the host 0.1 ms less.
LARGE = 2**20

# classes from which ours is used on the CPU, where it works on one row at a time
MANY_CLASSES = 256


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

    Raises:
        IndexError: on the CPU, as torch does, for a label outside of the classes.
    """
    names: dict[str, Any] = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    names["reduction"] = reduction
    is_large = logits.numel() >= LARGE and logits.dim() == 2 and labels.dtype is torch.int64
    if is_large and (usage.used(logits.device) or _in_cpp(logits, labels)):
        if logits.device.type == "cpu":
            _check_labels(labels, logits.shape[1], ignore_index)
        return own.cross_entropy(logits, labels, **names)
    exact = logits if logits.dtype is torch.float64 else logits.float()
    return F.cross_entropy(exact, labels, **names)


def _in_cpp(logits: Tensor, labels: Tensor) -> bool:
    return (
        logits.device.type == "cpu"
        and logits.shape[1] >= MANY_CLASSES
        and kernels_enabled()
        and own.takes_cpp(logits, labels)
    )


def _check_labels(labels: Tensor, classes: int, ignore_index: int) -> None:
    outside = ((labels < 0) | (labels >= classes)) & (labels != ignore_index)
    if outside.any():
        raise IndexError(f"Target {int(labels[outside][0])} is out of bounds: {classes} classes.")
