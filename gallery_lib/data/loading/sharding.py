"""Divide a loader among the ranks: a DataLoader of any subclass, or an iterable of batches.

A rank's share depends on the loader:

- map-style data: every world_size-th index of the sampler; the tail is filled up from the start
- with a batch_sampler, or batch_size=None: every world_size-th batch (item), whole; same tail
- list or tuple of batches: every world_size-th batch; same tail
- stream, other iterable of batches: every world_size-th item (batch); the tail is left out
- with a sampler that knows ranks (DistributedSampler): all that it yields

So all ranks take the same number of steps. With `drop_last` tails are left out everywhere. Data,
orders and streams that differ from rank to rank are refused by name: a share of a share would lose
samples. `config.loader.shard` overrides this. Everything else about the loader stays.

The ranks agree when the loader is given to `accelerate()`, which is a collective call. A pass is
none: no rank waits for another in it, so that one may iterate alone.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, IterDataPipe, TensorDataset

from gallery_lib.comm import process_group
from gallery_lib.data.loading import samplers
from gallery_lib.data.loading.comparison import (
    digest,
    length_of,
    of_data,
    refuse_unlike,
    try_on_all_ranks,
)
from gallery_lib.data.loading.nesting import attributes_of, own_copy, with_attributes
from gallery_lib.data.loading.samplers import Place, ShardedSampler
from gallery_lib.errors import InputError


@dataclass
class Share:
    """Share of one rank: the loader to iterate over, made of the caller's.

    `part` is the sampler in it that divides an order, if any.
    """

    loader: Any
    caller: Any = None
    part: ShardedSampler | None = None

    def follow_caller(self) -> None:
        """Take over what the caller has changed at the samplers since the last pass.

        Raises:
            InputError: for a new sampler that divides the data itself.
        """
        if self.part is None:
            return
        batches: Any = self.caller.batch_sampler
        own = vars(self.loader)["batch_sampler"]
        if own is None or own is self.part:
            base = samplers.outermost(self.caller)
            self.part.drop_last = own is not None and getattr(base, "drop_last", False) is True
        else:
            vars(own).update({n: v for n, v in vars(batches).items() if n != "sampler"})
            base, self.part.drop_last = batches.sampler, batches.drop_last
        if base is not self.part.base and samplers.place_of(samplers.below(base)):
            raise InputError(
                f"the loader's new sampler ({type(base).__name__}) divides the data by rank, and "
                "accelerate() divides it as well: give accelerate() the loader with that sampler.",
                parameter="loader",
            )
        self.part.base = base

    def check_used(self) -> None:
        """Raise InputError after the first batch of a loader that did not read its sampler."""
        if self.part is not None and not self.part.used:
            raise InputError(
                f"the loader is a {type(self.loader).__name__}, which does not read its own "
                "sampler, so that it cannot be divided over the ranks: give it a "
                "DistributedSampler and config.loader.shard = 'never', or do without the subclass.",
                parameter="loader",
            )


@dataclass(frozen=True)
class _Facts:
    kind: str
    place: Place | None = None
    length: int | None = None
    data: bytes = b""
    order: int = 0
    seed: int = dataclasses.field(default_factory=torch.initial_seed)


def sharded(loader: Any, rank: int, world_size: int, shard: str = "auto") -> Share:
    """Return this rank's share of `loader`; `shard` is `config.loader.shard`. A collective call.

    Raises:
        InputError: on every rank for a loader that cannot be divided, or that does not fit the
            loaders of the other ranks.
    """
    if shard == "never":
        return Share(loader)
    check = shard == "auto"
    if isinstance(loader, (list, tuple)):
        batches: Any = loader
        loader = DataLoader(batches, batch_size=None, collate_fn=_unchanged)
    if not isinstance(loader, DataLoader):
        _agreed(_Facts("iterable"), rank, world_size)
        if check:
            _check_stream(loader, loader, world_size)
        return Share(_ShardedBatches(loader, rank, world_size))
    is_stream = isinstance(loader.dataset, IterableDataset)
    sampler = samplers.outermost(loader)
    inner = sampler.sampler if type(sampler) is BatchSampler else sampler
    names = list(dict.fromkeys(type(one).__name__ for one in (sampler, inner)))
    facts = _agreed(
        _Facts(
            "stream" if is_stream else f"map-style data, {' of '.join(names)}",
            samplers.place_of(samplers.chain(loader)) if check else None,
            length_of(loader.dataset),
            b"" if is_stream or not check else of_data(loader.dataset),
            0 if is_stream else samplers.new_seed(sampler),
        ),
        rank,
        world_size,
    )
    if facts[0].place is not None:
        return Share(loader)
    if is_stream:
        if check:
            _check_stream(loader, loader.dataset, world_size)
        share = functools.partial(share_of, rank=rank, world_size=world_size)
        return Share(_copied(loader, dataset=_reading(loader.dataset, share, world_size)))
    data = f"the data set ({type(loader.dataset).__name__})"
    at_random = check and _drawn_at_random(loader, facts, data)
    refuse_unlike([(fact.length, b"" if at_random else fact.data) for fact in facts], data)
    part = _part(loader, rank, world_size, facts[0].order)
    if check:
        samplers.check_order(part.base, part.next_order() or 0)
    return _with_part(loader, part)


def _unchanged(item: Any) -> Any:
    return item


def _agreed(own: _Facts, rank: int, world_size: int) -> list[_Facts]:
    """Return all ranks' facts; refuse loaders of different kinds, or made for other ranks."""
    facts: list[_Facts] = process_group.all_ranks(own)
    if len({(fact.kind, fact.place is None) for fact in facts}) > 1:
        kinds = ", ".join(
            f"rank {number}: {fact.kind}{f' for {fact.place}' if fact.place else ''}"
            for number, fact in enumerate(facts)
        )
        raise InputError(
            f"the ranks' loaders are of different kinds ({kinds}). Give every rank the same.",
            parameter="loader",
        )
    for number, place in enumerate(fact.place for fact in facts):
        number = number if len(facts) > 1 else rank
        if place is not None and (place.rank, place.replicas) != (number, world_size):
            raise InputError(
                f"the loader's {place.name} is for {place}, on the process that is rank {number} "
                f"of {world_size}. Make it with the run's num_replicas and rank, or set "
                "config.loader.shard = 'never'.",
                parameter="loader",
            )
    return facts


def _drawn_at_random(loader: DataLoader[Any], facts: list[_Facts], what: str) -> bool:
    ranks = len(facts)
    if type(loader.dataset) is not TensorDataset or ranks == 1:
        return False
    if len({fact.data for fact in facts}) < ranks or len({fact.seed for fact in facts}) < ranks:
        return False
    if process_group.rank() == 0:
        warnings.warn(
            f"accelerate(): {what} differs from rank to rank, and so do the ranks' seeds, so it "
            "counts as drawn at random: each rank takes its part of the indices. If the ranks hold "
            "shares of one data set, set config.loader.shard = 'never'.",
            stacklevel=2,
        )
    return True


def _check_stream(loader: Any, stream: Any, count: int) -> None:
    """Refuse a stream that is not the same on all ranks, by its length and first `count` items.

    These are read in a forked process. A source outside of it, such as a queue, may notice that.
    """
    what = f"the stream ({type(stream).__name__})"
    if isinstance(stream, IterDataPipe):
        raise InputError(
            f"{what} is a data pipe, which torch divides by its sharding_filter(): set "
            "config.loader.shard = 'never'.",
            parameter="loader",
        )
    refuse_unlike(try_on_all_ranks(what, lambda: _first_items(loader, stream, count)), what)


def _first_items(loader: Any, stream: Any, count: int) -> tuple[Any, ...]:
    length = length_of(stream)
    if not isinstance(loader, DataLoader):
        return length, next(_digest_alone(iter(loader), count))
    looking = _copied(
        loader,
        dataset=_reading(loader.dataset, functools.partial(_digest_alone, count=count)),
        batch_sampler=None,
        batch_size=None,
        collate_fn=_unchanged,
        pin_memory=False,
    )
    if loader.num_workers:  # this process is a trial's: its workers need not be started anew
        looking.multiprocessing_context = "fork"
    digests = enumerate(DataLoader.__iter__(looking))  # one of each worker, in order
    return length, next((own for own in digests if own[1] is not None), None)


def _digest_alone(items: Iterator[Any], count: int) -> Iterator[bytes | None]:
    first = list(itertools.islice(items, count))
    yield digest(first) if first else None


def _part(loader: DataLoader[Any], rank: int, world_size: int, seed: int) -> ShardedSampler:
    """Return what divides the order of a loader: of its samples, or of the caller's own batches."""
    batches: Any = loader.batch_sampler
    if batches is None:
        return ShardedSampler(loader.sampler, rank, world_size, drop_last=False, seed=seed)
    if _samples_are_divided(loader):
        base, drop_last = loader.sampler, loader.drop_last
    else:
        base, drop_last = batches, getattr(batches, "drop_last", False) is True
    return ShardedSampler(base, rank, world_size, drop_last=drop_last, seed=seed)


def _samples_are_divided(loader: DataLoader[Any]) -> bool:
    batches: Any = loader.batch_sampler
    own = isinstance(batches, BatchSampler) and batches.sampler is loader.sampler
    return own and loader.batch_size is not None


def _with_part(loader: DataLoader[Any], part: ShardedSampler) -> Share:
    if loader.batch_sampler is None:
        return Share(_copied(loader, sampler=part), loader, part)
    if not _samples_are_divided(loader):
        return Share(_copied(loader, batch_sampler=part), loader, part)
    batches: Any = copy.copy(loader.batch_sampler)
    batches.sampler = part
    return Share(_copied(loader, sampler=part, batch_sampler=batches), loader, part)


def _copied(loader: DataLoader[Any], **parts: Any) -> DataLoader[Any]:
    """Return a copy of `loader`, not begun, with other `parts` (`dataset`, `sampler`, …).

    A DataLoader refuses to be given another part, and a plain DataLoader would lose what a subclass
    adds. The copy keeps everything else, including the options of any version of torch.

    Raises:
        InputError: for a subclass that answers with other parts than it was given.
    """
    kind = type(loader)
    result: DataLoader[Any] = object.__new__(kind)
    for name, value in attributes_of(loader).items():
        own_method = isinstance(value, types.MethodType) and value.__self__ is loader
        value = types.MethodType(value.__func__, result) if own_method else value
        if name in vars(loader):
            vars(result)[name] = value  # DataLoader refuses an assignment
        else:
            object.__setattr__(result, name, value)
    vars(result).update(parts, _iterator=None, _IterableDataset_len_called=None)
    if strange := [name for name, part in parts.items() if getattr(result, name) is not part]:
        raise InputError(
            f"the loader is a {kind.__name__}, whose `{strange[0]}` cannot be replaced, so that "
            "it cannot be divided over the ranks: give it a DistributedSampler, or set "
            "config.loader.shard = 'never'.",
            parameter="loader",
        )
    return result


def may_refill(loader: Any) -> bool:
    """Return whether a batch may be overwritten when the next one is read.

    A DataLoader collates each batch into new memory, and what comes from a worker is new here. An
    iterable of the user's, and a loader's own `__iter__`, may yield one buffer again and again.
    """
    if not isinstance(loader, DataLoader):
        return True
    if type(loader).__iter__ is not DataLoader.__iter__ and not hasattr(loader, "early_start"):
        return True
    return loader.num_workers == 0 and loader.batch_sampler is None


def share_of(items: Iterable[Any], rank: int, world_size: int) -> Iterator[Any]:
    """Yield the items of one rank: of each full round of `world_size` items that of its place.

    A last round that is not full is left out on every rank, so no rank needs to hear of another.
    The rest of the round is read first, which may fill the memory of the item again: so it is kept.
    """
    own: Any = None
    for number, item in enumerate(items):
        place = number % world_size
        if place == rank:
            own = item if place == world_size - 1 else own_copy(item)
        if place == world_size - 1:
            yield own


class _Reading:
    def __init_subclass__(cls, **_: Any) -> None:
        """Keep the class from the user's `__init_subclass__`, a registry for instance."""


def _reading(dataset: Any, read: Callable[[Iterator[Any]], Iterator[Any]], parts: int = 1) -> Any:
    """Return `dataset` with `read` applied to what its `__iter__` yields.

    Its length is that of one of `parts` parts. The result is an object of a subclass and shares the
    data set's attributes. So `get_worker_info().dataset` is what the user has made, and what the
    user's `worker_init_fn` sets there is read.

    Raises:
        InputError: for a data set whose class cannot have a subclass.
    """
    kind: Any = type(dataset)
    namespace: dict[str, Any] = {
        "__doc__": kind.__doc__,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__iter__": lambda self: read(kind.__iter__(self)),
        "__reduce_ex__": lambda self, protocol: (_reading, (dataset, read, parts)),
    }
    if hasattr(kind, "__len__"):
        namespace["__len__"] = lambda self: kind.__len__(self) // parts
    metaclass: Any = type(kind)
    try:
        result: Any = object.__new__(metaclass(kind.__name__, (_Reading, kind), namespace))
    except TypeError as error:
        raise InputError(
            f"the stream ({kind.__name__}) cannot be divided over the ranks: {error}. Let it "
            "divide itself by rank, and set config.loader.shard = 'never'.",
            parameter="loader",
        ) from None
    own = vars(dataset)
    object.__setattr__(result, "__dict__", own)
    slots = {name: value for name, value in attributes_of(dataset).items() if name not in own}
    return with_attributes(result, slots)


class _ShardedBatches:
    """Every `world_size`-th batch of an iterable of batches; attributes are the iterable's."""

    def __init__(self, base: Any, rank: int, world_size: int) -> None:
        vars(self).update(base=base, _place=(rank, world_size))

    def __getattr__(self, name: str) -> Any:
        if name == "base":  # while this object is being copied
            raise AttributeError(name)
        return getattr(vars(self)["base"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.base, name, value)

    def __len__(self) -> int:
        return len(self.base) // self._place[1]

    def __iter__(self) -> Iterator[Any]:
        return share_of(self.base, *self._place)
