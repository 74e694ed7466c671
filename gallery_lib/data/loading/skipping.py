"""Skip what a pass has had before a resume, by index: samples that are skipped are not loaded.

Skipped is counted in items of the order that all ranks divide, so it fits any number of ranks. What
has no order of indices, such as a stream, is read again, and its batches are dropped.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler

from gallery_lib.data.loading import random_states
from gallery_lib.data.loading.agreed_order import ShardedSampler
from gallery_lib.data.loading.random_states import DrawnFrom
from gallery_lib.data.loading.sharding import Share
from gallery_lib.errors import InputError


class SkipFirst(Sampler[Any]):
    """What `base` yields, without the first `skip` items of the next pass."""

    def __init__(self, base: Any) -> None:
        self.base, self.skip = base, 0
        self.states: DrawnFrom | None = None
        """Random states at which `base` draws the pass; None: where they stand."""

    def __len__(self) -> int:
        return len(self.base)

    def __getattr__(self, name: str) -> Any:
        if name == "base":  # not set yet while a worker unpickles this object
            raise AttributeError(name)
        return getattr(self.base, name)

    def __iter__(self) -> Iterator[Any]:
        """Return the rest of the pass; what is skipped is drawn at once, not at the first item."""
        skip, self.skip = self.skip, 0
        states, self.states = self.states, None
        with random_states.at(states):
            items = iter(self.base)
            for _ in itertools.islice(items, skip):
                pass
        return items


def samples_per_item(loader: Any) -> int | None:
    """Return the samples of a batch where single indices are divided; None where batches are."""
    if isinstance(loader, DataLoader) and _plain_batches(loader):
        return loader.batch_size
    return None


def _plain_batches(loader: DataLoader[Any]) -> bool:
    return type(loader.batch_sampler) is BatchSampler and loader.batch_size is not None


def skip(
    share: Share, batches: int, batch_size: int | None, before: int, now: int
) -> SkipFirst | ShardedSampler | int:
    """Have the next pass of a share begin where a pass of `before` ranks was left off.

    Args:
        share: this rank's share of a loader.
        batches: batches that each rank had had.
        batch_size: samples of such a batch; None where batches are divided whole.
        before: number of ranks then.
        now: number of ranks of this run.

    Returns:
        The sampler that skips, or the number of batches that the caller has to read and drop.

    Raises:
        InputError: for a stream, or another loader without an order, among another number of ranks.
    """
    loader = share.loader
    # Of the order that all ranks divide.
    items = batches * before * (batch_size or 1)
    if isinstance(share.part, ShardedSampler):
        share.part.skip = items
        return share.part
    if isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset):
        skipping = _skipping(loader)
        skipping.skip = items // now
        return skipping
    if before != now:
        raise InputError(
            f"the checkpoint is of {before} process(es) in the middle of a pass through a stream "
            f"({type(loader).__name__}), whose position is known for as many alone. Go on with "
            f"{before}, or give a loader of a map-style data set.",
            parameter="resume",
        )
    return batches


def _skipping(loader: DataLoader[Any]) -> SkipFirst:
    """Return the sampler that skips, put in front of the loader's own where it is not there yet."""
    if _plain_batches(loader):
        batches: Any = loader.batch_sampler
        if not isinstance(batches.sampler, SkipFirst):
            batches.sampler = SkipFirst(batches.sampler)
        return batches.sampler
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    present = getattr(loader, name)
    if not isinstance(present, SkipFirst):
        present = SkipFirst(present)
        vars(loader)[name] = present  # DataLoader refuses an assignment
    return present
