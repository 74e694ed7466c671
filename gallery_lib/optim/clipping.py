"""Clipping of gradients on the device: the factor that a sync-free optimizer applies."""

from __future__ import annotations

from torch import Tensor


def clip_factor(norm: Tensor, max_norm: float, gradient_scale: Tensor | None = None) -> Tensor:
    """Return the factor that brings the gradients' norm to at most `max_norm`.

    The formula is that of `clip_grad_norm_`. All stays on the device.

    Args:
        norm: norm of the gradients as they are.
        max_norm: the most that the norm may be.
        gradient_scale: the scale of `norm`, if it is scaled.
    """
    if gradient_scale is not None:
        norm = norm / gradient_scale
    return (max_norm / (norm + 1e-6)).clamp(max=1.0).float()
