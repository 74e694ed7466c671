"""Softmax cross-entropy in plain torch: CPU implementation and reference of the kernels.

Arithmetic is in fp32, or in fp64 for fp64 logits. Nothing waits for a CUDA device.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _wide(logits: Tensor) -> Tensor:
    return logits if logits.dtype is torch.float64 else logits.float()


def reference_rows(
    logits: Tensor, labels: Tensor, smoothing: float, ignore_index: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (loss, log-sum-exp, number of logits above the label's) [N].

    Computed in plain torch.
    """
    x, ignored = _wide(logits), labels == ignore_index
    known = (labels >= 0) & (labels < x.shape[1])
    own = (
        x.gather(1, labels.where(known, 0)[:, None])[:, 0].where(known, torch.nan)
        if x.shape[1]
        else x.new_full(labels.shape, torch.nan)
    )
    log_sum = torch.logsumexp(x, 1)
    log_sum = log_sum.where(log_sum != torch.inf, torch.nan)
    loss = log_sum - own
    if smoothing:
        loss = (1 - smoothing) * loss + smoothing * (log_sum - x.sum(1) / x.shape[1])
    above = (x > own[:, None]).sum(1, dtype=torch.int32)
    return (
        loss.masked_fill(ignored, 0),
        log_sum.masked_fill(ignored, 0),
        above.masked_fill(ignored, -1),
    )


def reference_gradient(
    logits: Tensor,
    labels: Tensor,
    smoothing: float,
    ignore_index: int,
    log_sum: Tensor,
    of_loss: Tensor,
) -> Tensor:
    """Return the gradient of the logits, [N, C] in their dtype, in plain torch."""
    x, classes = _wide(logits), logits.shape[1]
    known = (labels >= 0) & (labels < classes)
    difference = (x - log_sum[:, None]).exp() - smoothing / max(classes, 1)
    difference = difference - (1 - smoothing) * (
        torch.arange(classes, device=x.device) == labels[:, None]
    ).to(x.dtype)
    gradient = of_loss.where(known, torch.nan)[:, None] * difference
    return gradient.masked_fill((labels == ignore_index)[:, None], 0).to(logits.dtype).contiguous()
