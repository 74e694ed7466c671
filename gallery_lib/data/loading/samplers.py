"""Find the samplers of a loader, and divide the order that they draw among the ranks.

Some samplers know ranks: they divide the data themselves, as DistributedSampler does. Of all
others, every world_size-th index belongs to a rank (`ShardedSampler`). So the union of one step's
batches is what a single process with the same global batch would see.

All ranks draw the same order without a message: `accelerate()` agrees on a seed, and each pass is
drawn from it and from the place in the training (`comm/averages.py`), or from the epoch that the
caller has set. So a pass after a training step has a new order, and a rank that iterates alone
takes nothing away from the others. Passes of a thread that reads ahead of a training are drawn from
their number instead. A sampler without an end, or without a length, is read ahead in chunks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import BatchSampler, RandomSampler, Sampler, SequentialSampler

from gallery_lib.comm import averages
from gallery_lib.data.loading import random_states
from gallery_lib.data.loading.comparison import digest, length_of, refuse_unlike, try_on_all_ranks
from gallery_lib.data.loading.length_buckets import LengthBucketSampler
from gallery_lib.data.loading.random_states import DrawnFrom

_REPLICAS = ("num_replicas", "world_size", "_num_replicas", "_world_size")
_RANK = ("rank", "_rank")
_DEEPEST = 4
"""Maximum depth of the search for samplers in samplers in batch samplers."""
_ROUNDS = 512
"""Rounds that are read ahead at a time of a sampler without a length."""
_MOST_AHEAD = 2**22
"""Maximum number of items read ahead."""


@dataclass(frozen=True)
class Place:
    """Rank, and number of ranks, for which the sampler called `name` is made."""

    name: str
    rank: int
    replicas: int

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.replicas}"


def outermost(loader: Any) -> Any:
    """Return the sampler that a loader's indices, or batches of them, come from."""
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


def chain(loader: Any) -> list[Any]:
    """Return the samplers of a loader, including nested ones, from the outside inwards."""
    outer = [getattr(loader, name, None) for name in ("batch_sampler", "sampler")]
    return list({id(sampler): sampler for one in outer for sampler in below(one)}.values())


def below(sampler: Any, depth: int = 0) -> Iterator[Any]:
    """Yield a sampler and those in its attributes, from the outside inwards."""
    if sampler is None or depth > _DEEPEST:
        return
    yield sampler
    for value in list(getattr(sampler, "__dict__", {}).values()):
        if isinstance(value, Sampler) or _place(value) is not None:
            yield from below(value, depth + 1)


def _place(sampler: Any) -> Place | None:
    own = getattr(sampler, "__dict__", {})
    replicas = next((own[name] for name in _REPLICAS if type(own.get(name)) is int), None)
    rank = next((own[name] for name in _RANK if type(own.get(name)) is int), None)
    if replicas is None or rank is None or not hasattr(type(sampler), "__iter__"):
        return None
    return Place(type(sampler).__name__, rank, replicas)


def place_of(samplers: Iterable[Any]) -> Place | None:
    """Return for which rank the first of `samplers` that knows ranks is made, or None."""
    return next((place for sampler in samplers if (place := _place(sampler))), None)


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
        ended = False
        length = length_of(self.base)
        # With a length, the first chunk is larger than the sampler unless _MOST_AHEAD limits it.
        rounds = _ROUNDS if length is None else length // self.world_size + 1
        size = max(1, min(rounds, _MOST_AHEAD // self.world_size)) * self.world_size
        while not ended:
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
            if ended and not self.drop_last and whole < len(waiting):
                missing = whole + self.world_size - len(waiting)
                waiting += itertools.islice(itertools.cycle(start), missing)
                whole = len(waiting)
            yield from waiting[self.rank : whole : self.world_size]
            waiting = waiting[whole:]


def drawn_from(sampler: Any, order: int) -> DrawnFrom:
    """Return the random states at which a sampler draws the pass whose seed is `order`."""
    return random_states.seeded(order, list(below(sampler)))


def check_order(sampler: Any, order: int) -> None:
    """Raise InputError unless all ranks' samplers yield the same from one seed. Collective."""
    inner = sampler.sampler if type(sampler) is BatchSampler else sampler
    if type(inner) in (SequentialSampler, RandomSampler, LengthBucketSampler):
        return

    def first_items() -> bytes:
        with random_states.at(drawn_from(sampler, order)):
            return digest(list(itertools.islice(sampler, 2 * _ROUNDS)))

    what = f"the sampler ({type(sampler).__name__})"
    hint = "draw from torch's, Python's or numpy's global generator, or from one in an attribute"
    refuse_unlike(try_on_all_ranks(what, first_items), f"the order of {what}", hint)
