"""Batch norm with ReLU in plain torch: reference of the kernels and of the C++, also in fp64.

Inputs are [N, C, H, W]. Arithmetic is in fp32, or in fp64 for an fp64 input. Values of channels are
[C] in that dtype. Nothing waits for a CUDA device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_OVER = (0, 2, 3)


@dataclass(frozen=True)
class Channels:
    """Values [C] that each channel is normalised with.

    `inverse_deviation` is 1 / √(variance + eps).
    """

    mean: Tensor
    inverse_deviation: Tensor
    weight: Tensor | None = None
    bias: Tensor | None = None


@dataclass(frozen=True)
class Running:
    """Running statistics [C], updated in place, or None.

    A new batch's share of them is `momentum`, or 1 / `batches` when `momentum` is None.
    """

    mean: Tensor | None = None
    variance: Tensor | None = None
    batches: Tensor | None = None
    momentum: float | None = 0.1


def arithmetic(x: Tensor) -> torch.dtype:
    """Return the dtype of the arithmetic on batches like `x`, and of their channels' values."""
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def rows(x: Tensor) -> int:
    """Return how many values each channel has: N · H · W."""
    return x.shape[0] * x.shape[2] * x.shape[3]


def _column(values: Tensor) -> Tensor:
    return values[:, None, None]


def partial(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return (mean, sum of squared deviations from it) [C] of the rows of this process.

    Both are 0 when there are no rows.
    """
    if rows(x) == 0:
        return x.new_zeros(x.shape[1], dtype=arithmetic(x)), x.new_zeros(
            x.shape[1], dtype=arithmetic(x)
        )
    variance, mean = torch.var_mean(x.to(arithmetic(x)), _OVER, correction=0)
    return mean, variance * rows(x)


def combine(
    counts: Tensor, means: Tensor, squares: Tensor, running: Running, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Return (mean, inverse deviation) [C] of all parts together; update `running`.

    `counts` is [parts]; `means` and `squares` are [parts, C].
    """
    n = counts.double()[:, None]
    total = n.sum().clamp(min=1)
    mean = (n * means).sum(0) / total
    squared = (squares + n * (means - mean).square()).sum(0)
    if running.mean is not None and running.variance is not None:
        share: Tensor | float = running.momentum or 0.0
        if running.momentum is None and running.batches is not None:
            share = 1 / running.batches.double()
        share = (n.sum() > 0).double() * share  # without rows, no change
        running.mean.copy_((1 - share) * running.mean + share * mean)
        running.variance.copy_(
            (1 - share) * running.variance + share * squared / (total - 1).clamp(min=1)
        )
    return mean.to(means.dtype), (squared / total + epsilon).rsqrt().to(means.dtype)


def normalise(x: Tensor, residual: Tensor | None, c: Channels) -> Tensor:
    """Return relu((x − mean) · inverse deviation · weight + bias + residual).

    The result is in channels_last and has x's dtype.
    """
    scale = c.inverse_deviation if c.weight is None else c.inverse_deviation * c.weight
    value = (x - _column(c.mean)) * _column(scale)
    if c.bias is not None:
        value = value + _column(c.bias)
    if residual is not None:
        value = value + residual
    return value.relu().to(x.dtype).contiguous(memory_format=torch.channels_last)


def sums(
    gradient: Tensor, x: Tensor, result: Tensor | None, c: Channels
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of weight and bias [C], and the gradient behind ReLU.

    The last one is [N, C, H, W] in channels_last. `result` is what the forward pass returned. When
    it is None, it is computed again, which is right only without a residual.
    """
    blocked = (normalise(x, None, c) if result is None else result) <= 0
    masked = gradient.masked_fill(blocked, 0).contiguous(memory_format=torch.channels_last)
    wide = masked.to(arithmetic(x))
    of_weight = (wide * (x - _column(c.mean))).sum(_OVER) * c.inverse_deviation
    return of_weight, wide.sum(_OVER), masked


def of_input(
    masked: Tensor, x: Tensor, c: Channels, of_weight: Tensor, of_bias: Tensor, count: Tensor | None
) -> Tensor:
    """Return the gradient of x, in channels_last.

    `of_weight`, `of_bias` and `count` are those of all rows that were normalised together.
    """
    n = max(rows(x), 1) if count is None else count.reshape(()).to(arithmetic(x))
    scale = c.inverse_deviation if c.weight is None else c.inverse_deviation * c.weight
    standardised = (x - _column(c.mean)) * _column(c.inverse_deviation)
    gradient = _column(scale) * (
        masked - _column(of_bias / n) - standardised * _column(of_weight / n)
    )
    return gradient.to(x.dtype).contiguous(memory_format=torch.channels_last)
