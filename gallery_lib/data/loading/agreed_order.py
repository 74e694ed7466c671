"""Agree on one order of samples: each rank takes its share of what a sampler yields.

Every world_size-th index belongs to a rank. So the union of one step's batches is what a single
process with the same global batch would see. All ranks draw the same order without a message:
`accelerate()` agrees on a seed, and each pass is drawn from it and from the place in the training
(`comm/averages.py`), or from the epoch that the caller has set. So a pass after a training step has
a new order, and a rank that iterates alone takes nothing away from the others. Passes of a thread
that reads ahead of a training are drawn from their number instead. A sampler without an end, or
without a length, is read ahead in chunks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, RandomSampler, Sampler, SequentialSampler

from gallery_lib.comm import averages, process_group
from gallery_lib.data.loading import random_states
from gallery_lib.data.loading.digests import digest
from gallery_lib.data.loading.length import length_of
from gallery_lib.data.loading.length_buckets import LengthBucketSampler
from gallery_lib.data.loading.random_states import DrawnFrom
from gallery_lib.data.loading.rank_samplers import below
from gallery_lib.data.loading.trial import in_child
from gallery_lib.errors import InputError

_FIRST_ROUNDS = 256
"""Rounds read ahead first of a sampler without a length; then twice as many each time."""
_MOST_AHEAD = 2**22
"""Maximum number of items read ahead."""
_MOST_COUNTED = 2**28
"""Maximum length of a data set for which the ranks compare which rank has which sample."""


_loaders = itertools.count()


def new_seed(sampler: Any) -> int:
    """Return a seed by the state of a sampler's generators.

    If it has none, the process's generators decide, and how many loaders there were before.
    """
    own = random_states.generators_of(list(below(sampler)))
    states: Any = [generator.get_state() for generator in own]
    return _number_of(states or (next(_loaders), random_states.captured(devices=False)))


def _number_of(value: Any) -> int:
    return int.from_bytes(digest(value)[:7], "little")


class ShardedSampler(Sampler[Any]):
    """Every `world_size`-th item that `base` yields, from `rank` on.

    An item is an index or a batch of indices. All ranks get the same number of items. With
    `drop_last` the tail that does not fill all ranks is left out; otherwise the tail is filled up
    from the start. `seed` is the same on all ranks.
    """

    def __init__(
        self, base: Any, rank: int, world_size: int, *, drop_last: bool, seed: int = 0
    ) -> None:
        self.base, self.rank, self.world_size, self.drop_last = base, rank, world_size, drop_last
        self.seed, self.used = seed, False
        self.from_generators = False
        """Draw from the sampler's own generators as they stand, and so as one process would: for
        loops that all ranks run alike, with generators that are alike."""
        self.epoch: int | None = None
        """Epoch that the caller has set."""
        self.steps_before = 0
        """Averaged backward passes before this process was started: those before a resume."""
        self.passes_ahead = 0
        """Passes begun by a thread that reads ahead of a training."""
        self.order: int | None = None
        """Seed of the next pass; None: what `next_order` returns then."""
        self.skip = 0
        """Items of `base` that the next pass leaves out: a resumed pass has had them."""
        self.states: DrawnFrom | None = None
        """Random states at which `base` draws that pass, if it was begun on one process."""

    def next_order(self) -> int | None:
        """Return the seed of a pass that begins now; None: the generators decide."""
        if self.from_generators:
            return None
        if self.epoch is not None:
            return _number_of((self.seed, "epoch", self.epoch))
        if averages.trained_elsewhere():
            self.passes_ahead += 1
            return _number_of((self.seed, "ahead", self.steps_before, self.passes_ahead))
        averaged, *accumulated = averages.place()
        return _number_of((self.seed, "steps", self.steps_before + averaged, *accumulated))

    def __len__(self) -> int:
        whole, over = divmod(len(self.base), self.world_size)
        return whole if self.drop_last or not over else whole + 1

    def __iter__(self) -> Iterator[Any]:
        self.used = True
        order, self.order = self.order, None
        skip, self.skip = self.skip, 0
        states, self.states = self.states, None
        order = self.next_order() if order is None else order
        if states is None and order is not None:
            states = drawn_from(self.base, order)
        source: Any = None
        start: list[Any] = []
        waiting: list[Any] = []  # fill no whole round yet
        for size in self._chunk_sizes():
            with random_states.at(states):
                source = iter(self.base) if source is None else source
                items = list(itertools.islice(source, size))
                if states is not None:
                    states = DrawnFrom(random_states.captured(devices=False), [])
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


def drawn_from(sampler: Any, order: int) -> DrawnFrom:
    """Return the random states at which a sampler draws the pass whose seed is `order`."""
    return random_states.seeded(order, list(below(sampler)))


def divided_already(sampler: Any, samples: int | None, order: int) -> bool:
    """Return whether each rank's `sampler` yields a part of its own of a data set of `samples`.

    The ranks compare what their samplers yield from the same seed. A collective call.

    Raises:
        InputError: on every rank where the orders can neither be divided nor are divided.
    """
    if _draws_alike(sampler):
        return False
    what = f"the sampler ({type(sampler).__name__})"
    items, reason = in_child(lambda: _first_items(sampler, order))
    views = process_group.all_ranks((reason, digest(items)))
    if failed := [rank for rank, (reason, _) in enumerate(views) if reason]:
        raise InputError(
            f"{what} could not be tried on rank {', '.join(map(str, failed))} "
            f"({views[failed[0]][0]}), so it is not known whether it divides the data by rank. Set "
            "config.loader.shard = 'always' to have it divided, or 'never' if it is.",
            parameter="loader",
        )
    if len({view for _, view in views}) == 1:
        return False
    if _parts_of_all(items, samples):
        return True
    raise InputError(
        f"{what} yields another order on every rank, even from one seed, and not a part of the "
        "data for each. If each yields its rank's share, set config.loader.shard = 'never'; "
        "otherwise draw from torch's, Python's or numpy's global generator, or from one in an "
        "attribute.",
        parameter="loader",
    )


def _draws_alike(sampler: Any) -> bool:
    inner = sampler.sampler if type(sampler) is BatchSampler else sampler
    return type(inner) in (SequentialSampler, RandomSampler, LengthBucketSampler)


def _first_items(sampler: Any, order: int) -> list[Any]:
    length = length_of(sampler)
    most = 2 * _FIRST_ROUNDS if length is None else min(length + 1, _MOST_AHEAD)
    with random_states.at(drawn_from(sampler, order)):
        return list(itertools.islice(sampler, most))


def _parts_of_all(items: list[Any], samples: int | None) -> bool:
    """Return whether the ranks' items are parts that together are the data set."""
    indices = _flat(items)
    flat = [] if indices is None else indices
    usable = bool(samples and samples <= _MOST_COUNTED and all(0 <= i < samples for i in flat))
    longest = max((len(item) for item in items if isinstance(item, (list, tuple))), default=1)
    facts = process_group.all_ranks((indices is not None and usable, len(flat), longest))
    if not all(fine for fine, _, _ in facts):
        return False
    assert samples is not None
    counts = torch.zeros(samples, dtype=torch.int32)
    counts[torch.tensor(flat, dtype=torch.int64).unique()] = 1
    counts = process_group.sum_over_ranks(counts.to(process_group.device()))
    total = sum(length for _, length, _ in facts)
    padding = process_group.world_size() * max(longest for _, _, longest in facts)
    return bool((counts > 0).all()) and total < samples + padding


def _flat(items: Sequence[Any]) -> list[int] | None:
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
