"""Bounds of the rounding errors of softmax cross-entropy, whoever computes it in fp32."""

from __future__ import annotations

from torch import Tensor

U = 2.0**-24


def bounds(
    logits: Tensor, labels: Tensor, smoothing: float, log_sum: Tensor, terms: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return bounds of the errors of loss, of log_sum [N] and of the gradient [N, C].

    The gradient is for a unit gradient of the loss, before rounding to its dtype. `terms` is how
    many numbers are added up one after another in fp32. Each addition, each rescaling and each
    exponential (at most 2 units in the last place, and the rounding of its argument, which e^-d
    weighs) is off by a few U of a sum of positive terms. Logits are float64.
    """
    of_log_sum = (6 * terms + 100) * U + 2 * U * log_sum.abs()
    known = labels.clamp(0, logits.shape[1] - 1)
    own = logits.gather(1, known[:, None])[:, 0].abs()
    of_loss = (
        of_log_sum
        + 4 * U * (log_sum.abs() + own)
        + smoothing * (terms + 20) * U * logits.abs().sum(1) / logits.shape[1]
    )
    probability = (logits - log_sum[:, None]).exp()
    of_gradient = probability * (
        of_log_sum[:, None] + 2 * U * (logits.abs() + log_sum.abs()[:, None]) + 6 * U
    ) + 6 * U * (probability + 1)
    return of_loss, of_log_sum, of_gradient
