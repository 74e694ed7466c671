"""Keep all ranks in step when they have divided the data themselves.

In every pass all ranks have as many batches as the rank with the most. No rank knows how many
batches of such data the other ranks have. If one rank ran out first, the others would wait for it
without end in the next averaging of gradients. So each rank notes in the process group's store, one
batch ahead, whether it has another batch. Each rank reads the notes of the others. These are two
short messages a step, which wait for nobody unless a rank is a whole step behind. A rank that has
run out repeats its first batch and warns.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from gallery_lib.comm import process_group
from gallery_lib.errors import InputError, RunFailed

_KEPT = 3
"""Number of notes of a rank that other ranks may still read."""


class InStep:
    """Batches of one pass, as many on every rank.

    Once the first batch is there, `part.divide` is false if the ranks have divided the data
    themselves. `name` is that of the pass, the same on all ranks.
    """

    def __init__(self, batches: Iterator[Any], part: Any, name: str) -> None:
        self._batches, self._part = batches, part
        self._prefix = f"gallery-in-step/{name}"
        self._said = False
        self._number = -1
        self._first: Any = None
        self._next: tuple[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._number < 0:
            batch = self._fetched()
        elif self._part.divide:
            return next(self._batches)
        else:
            batch = self._next
        if self._part.divide:  # known since the first batch
            self._number = 0
            if batch is None:
                raise StopIteration
            return batch[0]
        self._number += 1
        if self._number == 0:
            self._first = copy.deepcopy(batch)  # a loop may change its batches in place
            self._note(0, batch is not None)
        self._next = self._fetched() if batch is not None else None
        self._note(self._number + 1, self._next is not None)
        others = self._without(self._number)
        if batch is not None:
            if self._number == 0 and others:
                raise self._empty(others)
            return batch[0]
        if len(others) == process_group.world_size() - 1:
            raise StopIteration
        if self._first is None:
            raise self._empty([process_group.rank(), *others])
        self._say_repeated()
        return copy.deepcopy(self._first[0])

    def _fetched(self) -> tuple[Any] | None:
        try:
            return (next(self._batches),)
        except StopIteration:
            return None

    def _empty(self, ranks: list[int]) -> InputError:
        return InputError(
            f"rank {', '.join(map(str, sorted(ranks)))} has no batch at all in this pass, and "
            "others have. Give every rank a share, or set config.loader.shard = 'always' to have "
            "the data divided.",
            parameter="loader",
        )

    def _say_repeated(self) -> None:
        if not self._said:
            warnings.warn(
                f"accelerate(): rank {process_group.rank()} has run out of batches after "
                f"{self._number}, and repeats its first while others have some. Shares of the "
                "same length need none of this.",
                stacklevel=3,
            )
        self._said = True

    def _note(self, number: int, there: bool) -> None:
        store = dist.distributed_c10d._get_default_store()
        store.set(self._key(number, process_group.rank()), "1" if there else "0")
        if number >= _KEPT and not _is_file(store):
            store.delete_key(self._key(number - _KEPT, process_group.rank()))

    def _without(self, number: int) -> list[int]:
        """Return the other ranks that have no batch of this number."""
        store = dist.distributed_c10d._get_default_store()
        ranks = [rank for rank in range(process_group.world_size()) if rank != process_group.rank()]
        try:
            return [rank for rank in ranks if store.get(self._key(number, rank)) == b"0"]
        except (dist.DistStoreError, RuntimeError) as error:
            # the type of the error depends on the kind of store
            raise RunFailed(
                f"a rank did not come to batch {number + 1} of this pass: it has ended, or has "
                "left its loop early. All ranks have to take the same number of steps."
            ) from error

    def _key(self, number: int, rank: int) -> str:
        return f"{self._prefix}/{number}/{rank}"


def _is_file(store: dist.Store) -> bool:
    """Return whether the store is a file.

    In a file, torch does not find other keys after one was deleted.
    """
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return isinstance(store, dist.FileStore)
