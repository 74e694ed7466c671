"""Find the samplers of a loader, and divide the order that they draw among the ranks.

Every world_size-th index of an order belongs to a rank (`ShardedSampler`). So the union of one
step's batches is what a single process with the same global batch would see.

All ranks draw the same order without a message: `accelerate()` agrees on a seed, and each pass is
drawn from it and from the place in the training (`process_group`), or from the epoch that the
caller has set. So a pass after a training step has a new order, and a rank that iterates alone
takes nothing away from the others. Passes of a thread that reads ahead of a training are drawn from
their number instead.

`LengthBucketSampler` keeps items of similar length together, so that little of a batch is padding.
It yields single indices, not batches, so that it can be divided: every rank's share of a global
batch has similar lengths, and no rank becomes a straggler.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, Sampler

from gallery_lib.comm import process_group
from gallery_lib.data.loading import random_states
from gallery_lib.data.loading.random_states import DrawnFrom

_DEEPEST = 4  # maximum depth of the search for samplers in samplers in batch samplers
# batches within whose items a pass sorts by length; the rest of its order is random
WINDOW_BATCHES = 16
ROUNDS = 512  # rounds that are read ahead at a time; so an endless sampler streams


def below(sampler: Any, depth: int = 0) -> list[Any]:
    """Return a sampler and those inside it, from the outside inwards."""
    if sampler is None or depth > _DEEPEST:
        return []
    own = getattr(sampler, "__dict__", {})
    return [sampler, *below(own.get("sampler", own.get("base")), depth + 1)]


def chain(loader: Any) -> list[Any]:
    """Return the samplers of a loader, including nested ones, from the outside inwards."""
    outer = [getattr(loader, name, None) for name in ("batch_sampler", "sampler")]
    return list({id(sampler): sampler for one in outer for sampler in below(one)}.values())


def place_of(loader: Any) -> tuple[int, int] | None:
    """Return the rank, and number of ranks, for which a DistributedSampler or the like is made."""
    for sampler in chain(loader):
        rank, replicas = (getattr(sampler, name, None) for name in ("rank", "num_replicas"))
        if type(rank) is int and type(replicas) is int and not isinstance(sampler, ShardedSampler):
            return rank, replicas
    return None


def divides_samples(loader: Any) -> bool:
    """Return whether single indices are divided; else the caller's own batches are, whole."""
    own = isinstance(loader, DataLoader) and isinstance(loader.batch_sampler, BatchSampler)
    return own and loader.batch_size is not None


def owner_of_order(loader: Any) -> tuple[Any, str]:
    """Return the object and the name of its attribute from which the order of a loader comes."""
    if divides_samples(loader):
        return loader.batch_sampler, "sampler"
    return loader, "sampler" if loader.batch_sampler is None else "batch_sampler"


_loaders = itertools.count()


def new_seed(loader: Any) -> int:
    """Return a seed by the state of the samplers' own generator, or else of torch's."""
    generators = random_states.generators_of(chain(loader))
    states = [generator.get_state() for generator in generators] or [torch.get_rng_state()]
    return _number_of(next(_loaders), *(state.numpy().tobytes() for state in states))


def _number_of(*values: Any) -> int:
    return int.from_bytes(hashlib.blake2b(repr(values).encode(), digest_size=7).digest())


class ShardedSampler(Sampler[Any]):
    """Every `world_size`-th item that `base` yields, from `rank` on.

    An item is an index or a batch of indices. All ranks get the same number of items. With
    `drop_last` the tail that does not fill all ranks is left out; otherwise the tail is filled up
    from the start. `seed` is the same on all ranks. A single process takes all items, and has this
    sampler to leave out those that a resumed pass has had.
    """

    def __init__(
        self, base: Any, rank: int, world_size: int, *, drop_last: bool = False, seed: int = 0
    ) -> None:
        self.base, self.rank, self.world_size, self.drop_last = base, rank, world_size, drop_last
        self.seed, self.used = seed, False
        # draw from the sampler's own generators as they stand, and so as one process would: for
        # loops that all ranks run alike, with generators that are alike
        self.from_generators = world_size == 1
        self.epoch: int | None = None  # epoch that the caller has set
        # averaged backward passes before this process was started: those before a resume
        self.steps_before = 0
        self.passes_ahead = 0  # passes begun by a thread that reads ahead of a training
        self.order: int | None = None  # seed of the next pass; None: what `next_order` returns then
        self.skip = 0  # items of `base` that the next pass leaves out: a resumed pass has had them
        # random states at which `base` draws that pass, if it was begun on one process
        self.states: DrawnFrom | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "base" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.base, name)  # a user's sampler keeps what it has

    def next_order(self) -> int | None:
        """Return the seed of a pass that begins now; None: the generators decide."""
        if self.from_generators:
            return None
        if self.epoch is not None:
            return _number_of(self.seed, "epoch", self.epoch)
        if process_group.trained_elsewhere():
            self.passes_ahead += 1
            return _number_of(self.seed, "ahead", self.steps_before, self.passes_ahead)
        averaged, *accumulated = process_group.training_place()
        return _number_of(self.seed, "steps", self.steps_before + averaged, *accumulated)

    def __len__(self) -> int:
        whole, over = divmod(len(self.base), self.world_size)
        return whole if self.drop_last or not over else whole + 1

    def drawn_from(self, order: int) -> DrawnFrom:
        """Return the random states at which `base` draws the pass whose seed is `order`."""
        return random_states.seeded(order, below(self.base))

    def __iter__(self) -> Iterator[Any]:
        self.used = True
        order, self.order = self.order, None
        skip, self.skip = self.skip, 0
        states, self.states = self.states, None
        if states is None:
            order = self.next_order() if order is None else order
            states = None if order is None else self.drawn_from(order)
        source: Any = None
        start: list[Any] = []
        waiting: list[Any] = []  # fill no whole round yet
        ended, size = False, ROUNDS * self.world_size
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
        # items of a batch in the next pass alone, which a resume goes on with
        self.next_batch_items: int | None = None

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
