"""Order items so that those of similar length are together, and little of a batch is padding.

The order consists of single indices, not of batches, so that it can be sharded over ranks. Every
rank's share of a global batch has similar lengths, and no rank becomes a straggler.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.utils.data import Sampler

WINDOW_BATCHES = 16
"""Batches within whose items a pass sorts by length; the rest of its order is random."""


class LengthBucketSampler(Sampler[int]):
    """Sampler of all indices, once per pass, in runs of similar length.

    Indices are 0 … len(lengths) − 1. Consecutive runs of `batch_items` indices have similar
    lengths. `batch_items` is the number of items in a batch of all ranks together. `generator`
    decides the order and advances with every pass. What does not fill a batch comes last.
    """

    def __init__(
        self, lengths: Sequence[int], batch_items: int, generator: torch.Generator
    ) -> None:
        self.lengths = torch.as_tensor(lengths)
        self.batch_items, self.generator = batch_items, generator
        self.next_batch_items: int | None = None
        """Items of a batch in the next pass alone, which a resume goes on with."""

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        items, self.next_batch_items = self.next_batch_items or self.batch_items, None
        order = torch.randperm(len(self.lengths), generator=self.generator)
        batches: list[torch.Tensor] = []
        for window in order.split(WINDOW_BATCHES * items):
            batches += window[self.lengths[window].argsort(stable=True)].split(items)
        full = [batch for batch in batches if len(batch) == items]
        rest = [batch for batch in batches if len(batch) < items]
        for number in torch.randperm(len(full), generator=self.generator).tolist():
            yield from full[number].tolist()
        for batch in rest:
            yield from batch.tolist()
