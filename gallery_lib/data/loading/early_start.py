"""A DataLoader whose workers can begin before its batches are asked for: before the model is built.

A worker is forked, and from then on a page of memory that this process writes to, and had touched before, is copied first. Forked after
a model of half a gigabyte was built, its weights are copied so in the first steps, small page by small page. And meanwhile it loads.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader


class EarlyWorkers(DataLoader[Any]):
    """The first pass has the batches that it would have without `begin`, if nobody else draws from `generator` meanwhile."""

    _early: Any = None

    def begin(self) -> None:
        """Start the workers of the first pass."""
        if self._early is None:
            self._early = super().__iter__()

    def __iter__(self) -> Any:
        early, self._early = self._early, None
        return super().__iter__() if early is None else early
