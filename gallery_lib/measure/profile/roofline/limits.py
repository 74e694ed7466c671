"""Limits of the machine, in turns with the steps: rates of matrix products and of a copy.

The copy's arrays of 256 MiB are far larger than caches are. Its rate counts bytes read and bytes
written.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from gallery_lib.measure.bench.machine_limits import (
    best_seconds,
    prepared_copy,
    prepared_product,
)
from gallery_lib.measure.profile.roofline.result import Limits, Spread

_REPEATS = 3


class LimitProbe:
    """Products and a copy, prepared to be measured again and again."""

    def __init__(self, device: torch.device, dtypes: Iterable[str]) -> None:
        """Prepare a product for each dtype, such as `bfloat16`, and the copy."""
        self._device = device
        self._bodies = {
            dtype: prepared_product(device, getattr(torch, dtype)) for dtype in sorted(dtypes)
        }
        self._copy = prepared_copy(device)
        self._rates: dict[str, list[float]] = {dtype: [] for dtype in self._bodies}
        self._copies: list[float] = []

    def measure(self) -> None:
        """Measure each once more; the best of three counts."""
        for dtype, (product, flops) in self._bodies.items():
            self._rates[dtype].append(flops / best_seconds(product, self._device, _REPEATS))
        copy, moved = self._copy
        self._copies.append(moved / best_seconds(copy, self._device, _REPEATS))

    def limits(self) -> Limits:
        """Return the medians of what was measured, with the lowest and the highest."""
        return Limits(
            {dtype: Spread.of(rates) for dtype, rates in self._rates.items()},
            Spread.of(self._copies),
        )
