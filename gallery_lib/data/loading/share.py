"""One rank's share of a loader, pass by pass.

At the first batch of a pass the ranks compare what they have. A stream that turns out to divide
itself begins again, undivided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader

from gallery_lib.data.loading.agreed_order import ShardedSampler
from gallery_lib.data.loading.in_step import InStep
from gallery_lib.data.loading.streams import ShardedStream
from gallery_lib.errors import InputError


@dataclass
class Share:
    """Share of one rank: the loader to iterate over, and the part in it that divides, if any.

    `sampled_by_rank` says that the caller's own sampler divides the data.
    """

    loader: Any
    part: ShardedSampler | ShardedStream | None = None
    sampled_by_rank: bool = False
    number: int = 0
    """Number of this loader among those that the ranks divide; the same on all ranks."""
    passes: int = 0

    def begin(self, watched: Callable[[Iterator[Any]], Iterator[Any]]) -> Iterator[Any]:
        """Return the batches of one pass; `watched` wraps the loader's own iterator."""
        begun = watched(iter(self.loader))
        self.passes += 1
        return (
            begun
            if self.part is None
            else InStep(_Pass(self, begun, watched), self.part, f"{self.number}/{self.passes}")
        )


class _Pass:
    """Batches of a pass; at the first one the ranks compare what they have."""

    def __init__(
        self,
        share: Share,
        batches: Iterator[Any],
        watched: Callable[[Iterator[Any]], Iterator[Any]],
    ) -> None:
        self._share, self._batches, self._watched = share, batches, watched
        self._looked = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._looked:
            return next(self._batches)
        self._looked = True
        try:
            return self._first()
        except StopIteration:
            _check_used(self._share)
            raise

    def _first(self) -> Any:
        part = self._share.part
        in_workers = getattr(self._share.loader, "num_workers", 0)
        undecided = (
            part if in_workers and isinstance(part, ShardedStream) and part.undecided else None
        )
        try:
            batch = next(self._batches)
        except Exception as error:
            if undecided is None or (isinstance(error, StopIteration) and not undecided.used):
                raise
            self._decide(undecided)  # the other ranks do so, too
            if undecided.divide:
                raise
            return next(self._batches)
        _check_used(self._share)
        if undecided is None:
            return batch
        self._decide(undecided)
        return batch if undecided.divide else next(self._batches)

    def _decide(self, part: ShardedStream) -> None:
        """Compare what the workers of all ranks found; restart a stream that divides itself."""
        part.decide()
        if not part.divide:
            loader = self._share.loader
            self._batches = iter(())  # ends the workers, which have skipped items
            if isinstance(loader, DataLoader):
                vars(loader).update(_iterator=None, _IterableDataset_len_called=None)
            self._batches = self._watched(iter(loader))


def _check_used(share: Share) -> None:
    if share.part is not None and not share.part.used:
        raise InputError(
            f"the loader is a {type(share.loader).__name__}, which does not read its own sampler "
            "or data set, so that it cannot be divided over the ranks: give it a "
            "DistributedSampler and config.loader.shard = 'never', or do without the subclass.",
            parameter="loader",
        )
