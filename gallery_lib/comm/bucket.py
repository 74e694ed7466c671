"""Bucket of gradients in flight: its state before averaging, and the pieces still missing."""

from __future__ import annotations

import threading

import torch
import torch.distributed as dist
from torch import Tensor


def _gradients(bucket: dist.GradBucket) -> list[Tensor]:
    """Return a bucket's gradients as views of its buffer, each in the parameter's shape.

    torch's own answer is wrong for complex parameters, whose buckets hold pairs of real numbers,
    and empty for a sparse gradient.
    """
    buffer, parameters = bucket.buffer(), bucket.parameters()
    if buffer.is_sparse:
        return [buffer]
    if not parameters[0].is_complex() or buffer.is_complex():
        return bucket.gradients()
    parts = torch.view_as_complex(buffer.view(-1, 2)).split(
        [parameter.numel() for parameter in parameters]
    )
    dense = [
        torch.empty_like(parameter, device="meta").stride() == parameter.stride()
        for parameter in parameters
    ]
    return [
        part.as_strided(parameter.shape, parameter.stride())
        if whole
        else part.view(parameter.shape)
        for part, parameter, whole in zip(parts, parameters, dense, strict=True)
    ]


def _is_finite(gradient: Tensor) -> Tensor:
    values = gradient._values() if gradient.is_sparse else gradient
    return values.isfinite().all()


class Bucket:
    """A bucket in flight.

    Args:
        bucket: the bucket that DDP handed over.
        names: the names of its parameters.
        pieces: the number of pieces in which it is averaged.
    """

    def __init__(self, bucket: dist.GradBucket, names: list[str], pieces: int) -> None:
        self.index, self.buffer, self.gradients, self.parameters = (
            bucket.index(),
            bucket.buffer(),
            _gradients(bucket),
            bucket.parameters(),
        )
        self.names = names
        self.done = threading.Event()
        self._left = pieces
        self._lock = threading.Lock()
        self._not_finite: Tensor | None = None

    def not_finite(self) -> Tensor:
        """Return which gradients are not finite on this rank, as bools [gradients].

        The first call comes before any piece is averaged; later calls return the same tensor.
        """
        with self._lock:
            if self._not_finite is None:
                self._not_finite = torch.stack(
                    [~_is_finite(gradient) for gradient in self.gradients]
                )
            return self._not_finite

    def mean_is_not_finite(self) -> Tensor:
        """Return whether the averaged buffer holds a value that is not finite, as a bool []."""
        return ~_is_finite(self.buffer)

    def piece_done(self) -> bool:
        """Count a piece as averaged; return whether it was the last one."""
        with self._lock:
            self._left -= 1
            return self._left == 0
