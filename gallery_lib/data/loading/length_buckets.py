"""Batches of variable length: items of similar length together, padded to a few lengths.

`LengthBucketSampler` orders items so that little of a padded batch is padding. Its order consists
of single indices, not of batches, so that it can be sharded over ranks. Every rank's share of a
global batch has similar lengths, and no rank becomes a straggler through a long batch.

`pad_to_bucket` pads a batch to one of a few lengths. A model that is compiled anew for every length
waits more than it computes.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Sampler

from gallery_lib.data.loading.nesting import members, with_members
from gallery_lib.errors import InputError

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
        """Number of items for the next pass alone, which other ranks have begun."""

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


def pad_to_bucket(batch: Any, buckets: Sequence[int], pad_values: Mapping[str | int, float]) -> Any:
    """Return `batch` with the parts that `pad_values` names padded to one common bucket.

    With `buckets=(64, 128, 256)` a batch of length 70 is padded to 128. The bucket is the smallest
    that fits all these parts; a longer batch stays as it is. `pad_values` says what fills a part:
    `{"input_ids": 0, "labels": -100}`, or `{0: 0.0}` for the first member of a tuple. `batch` is a
    mapping, a sequence or a dataclass, and keeps its type. None stays None.

    Raises:
        InputError: when a name is not in the batch, or is no tensor [N, length, …].
    """
    if batch is None or not pad_values:
        return batch
    parts = members(batch)
    known = parts or {}
    if unknown := [name for name in pad_values if name not in known]:
        names = f"the batch has {', '.join(map(repr, known))}"
        if parts is None:
            names = f"a batch is a {type(batch).__name__}, which has no named parts"
        raise InputError(f"pad_values names {unknown[0]!r}; {names}.", parameter="pad_values")
    padded = {name: known[name] for name in pad_values}
    for name, tensor in padded.items():
        if not isinstance(tensor, Tensor) or tensor.dim() < 2:
            raise InputError(
                f"pad_values names {name!r}, which is no tensor with a batch and a length "
                "dimension in this batch.",
                parameter="pad_values",
            )
    ordered = sorted(buckets)
    place = bisect.bisect_left(ordered, max(tensor.shape[1] for tensor in padded.values()))
    if place == len(ordered):
        return batch
    changes = {
        name: F.pad(tensor, (0, 0) * (tensor.dim() - 2) + (0, missing), value=pad_values[name])
        for name, tensor in padded.items()
        if (missing := ordered[place] - tensor.shape[1]) > 0
    }
    return with_members(batch, changes) if changes else batch
