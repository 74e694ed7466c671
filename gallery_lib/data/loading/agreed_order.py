"""Agree on one order of samples: each rank takes its share of what a sampler yields.

Every world_size-th index belongs to a rank. So the union of one step's batches is what a single
process with the same global batch would see. The ranks compare a digest of their orders once a
pass. If the digests differ, because each rank drew an order of its own, the order of rank 0 counts.
A sampler without an end, or without a length, is read ahead in chunks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from gallery_lib.comm import process_group
from gallery_lib.data.loading import digests, random_states
from gallery_lib.data.loading.length import length_of
from gallery_lib.data.loading.random_states import DrawnFrom
from gallery_lib.data.loading.streams import announce_own_division
from gallery_lib.errors import InputError

_FIRST_ROUNDS = 256
"""Rounds read ahead first of a sampler without a length; then twice as many each time."""
_MOST_AHEAD = 2**22
"""Maximum number of items read ahead."""
_MOST_COUNTED = 2**28
"""Maximum length of a data set for which the ranks compare which rank has which sample."""


class ShardedSampler(Sampler[Any]):
    """Every `world_size`-th item that `base` yields, from `rank` on.

    An item is an index or a batch of indices. All ranks get the same number of items. With
    `drop_last` the tail that does not fill all ranks is left out; otherwise the tail is filled up
    from the start. `samples` is the length of the data set. With `check`, a `base` that yields
    another part of the data on every rank counts as divided already, and is left as it is.
    """

    def __init__(
        self,
        base: Any,
        rank: int,
        world_size: int,
        *,
        drop_last: bool,
        samples: int | None = None,
        check: bool = True,
    ) -> None:
        self.base, self.rank, self.world_size, self.drop_last = base, rank, world_size, drop_last
        self.samples, self.check = samples, check
        self.divide, self.used = True, False
        self.skip = 0
        """Items of `base` that the next pass leaves out: a resumed pass has had them."""
        self.states: DrawnFrom | None = None
        """Random states at which `base` draws that pass; None: where they stand."""

    def __len__(self) -> int:
        if not self.divide:
            return len(self.base)
        whole, over = divmod(len(self.base), self.world_size)
        return whole if self.drop_last or not over else whole + 1

    def __iter__(self) -> Iterator[Any]:
        self.used = True
        skip, self.skip = self.skip, 0
        states, self.states = self.states, None
        if not self.divide:
            yield from itertools.islice(self.base, skip // self.world_size, None)
            return
        source: Any = None
        start: list[Any] = []
        waiting: list[Any] = []  # fill no whole round yet
        for size in self._chunk_sizes():
            items: list[Any] = []
            failure: Exception | None = None
            try:
                with random_states.at(states):
                    source = iter(self.base) if source is None else source
                    items.extend(itertools.islice(source, size))
            except Exception as error:
                failure = error
            states = None
            items = self._agreed(items, failure)
            if not self.divide:
                rest = itertools.chain(items, source)
                yield from itertools.islice(rest, skip // self.world_size, None)
                return
            start = start or items[: self.world_size]
            ended = len(items) < size
            waiting += items[skip:]
            skip = max(0, skip - len(items))
            whole = len(waiting) - len(waiting) % self.world_size
            round_items = self._completed(waiting, start) if ended else waiting[:whole]
            yield from round_items[self.rank :: self.world_size]
            if ended:
                return
            waiting = waiting[whole:]

    def _chunk_sizes(self) -> Iterator[int]:
        """Yield how many items to read next, in whole rounds of at most _MOST_AHEAD items.

        With a length, the first chunk is larger than the sampler unless _MOST_AHEAD limits it.
        """
        length = length_of(self.base)
        rounds = _FIRST_ROUNDS if length is None else length // self.world_size + 1
        while True:
            yield max(1, min(rounds, _MOST_AHEAD // self.world_size)) * self.world_size
            rounds *= 2

    def _completed(self, items: list[Any], start: list[Any]) -> list[Any]:
        if not (over := len(items) % self.world_size):
            return items
        if self.drop_last:
            return items[:-over]
        return items + list(itertools.islice(itertools.cycle(start), self.world_size - over))

    def _agreed(self, items: list[Any], failure: Exception | None) -> list[Any]:
        """Return the items that all ranks divide.

        Raises on every rank when one rank cannot read.
        """
        if failure is None and _knows_no_chance(self.base):
            # no exchange: no rank waits for another, should only some of them iterate
            return items
        views = process_group.all_ranks((failure is None, len(items), digests.of_indices(items)))
        if failure is not None:
            raise failure
        if failed := [str(rank) for rank, (fine, _, _) in enumerate(views) if not fine]:
            raise InputError(
                f"the sampler ({type(self.base).__name__}) failed on rank {', '.join(failed)}; "
                "its own message says why.",
                parameter="loader",
            )
        if len(set(views)) == 1:
            return items
        if self.check:
            self.check = False  # only the first pass is checked
            self.divide = not self._divided_already(items)
            if not self.divide:
                announce_own_division(f"what the sampler ({type(self.base).__name__}) yields")
                return items
        return _unpacked(process_group.from_rank_0(_packed(items) if self.rank == 0 else None))

    def _divided_already(self, items: list[Any]) -> bool:
        """Return whether the ranks' items are parts that together are the data set.

        Raises:
            InputError: on every rank where that cannot be known.
        """
        if _draws_from_all(self.base):
            return False
        indices = _flat(items)
        flat = [] if indices is None else indices
        usable = (
            self.samples
            and self.samples <= _MOST_COUNTED
            and all(0 <= index < self.samples for index in flat)
        )
        longest = max((len(item) for item in items if isinstance(item, (list, tuple))), default=1)
        facts = process_group.all_ranks((indices is not None and bool(usable), len(flat), longest))
        if not all(fine for fine, _, _ in facts):
            return False
        assert self.samples is not None
        counts = torch.zeros(self.samples, dtype=torch.int32)
        counts[torch.tensor(flat, dtype=torch.int64).unique()] = 1
        counts = process_group.sum_over_ranks(counts.to(process_group.device()))
        total = sum(length for _, length, _ in facts)
        padding = self.world_size * max(longest for _, _, longest in facts)
        if bool((counts > 0).all()) and total < self.samples + padding:
            return True
        if int(counts.max()) > 1:
            return False
        raise InputError(
            f"the ranks' samplers ({type(self.base).__name__}) have no sample in common. If each "
            "yields its rank's share, set config.loader.shard = 'never'; if each draws at random, "
            "set config.loader.shard = 'always', and rank 0's order is divided.",
            parameter="shard",
        )


def _inner(sampler: Any) -> Any:
    return sampler.sampler if type(sampler) is BatchSampler else sampler


def _knows_no_chance(sampler: Any) -> bool:
    return type(_inner(sampler)) is SequentialSampler


def _draws_from_all(sampler: Any) -> bool:
    return type(_inner(sampler)) in (RandomSampler, WeightedRandomSampler)


def _packed(items: list[Any]) -> Any:
    """Return plain numbers as an array, which is sent many times faster; else `items` itself."""
    try:
        return np.asarray(items, np.int64) if all(type(item) is int for item in items) else items
    except OverflowError:
        return items


def _unpacked(items: Any) -> list[Any]:
    return items.tolist() if isinstance(items, np.ndarray) else items


def order_kind(sampler: Any) -> str:
    """Return the type names of a sampler and of its inner sampler.

    These types decide whether the ranks compare their orders.
    """
    inner = _inner(sampler)
    name = type(sampler).__name__
    return name if inner is sampler else f"{name} of {type(inner).__name__}"


def _flat(items: list[Any]) -> list[int] | None:
    """Return the indices in `items`, or in batches of them; None if they are something else."""
    flat: list[int] = []
    for item in items:
        for index in item if isinstance(item, (list, tuple)) else (item,):
            if isinstance(index, Tensor) and index.numel() == 1:
                index = index.item()
            if not hasattr(type(index), "__index__") or isinstance(index, Tensor):
                return None
            flat.append(int(index))
    return flat
