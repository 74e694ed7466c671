"""Divide a loader among the ranks: a DataLoader of any subclass, or an iterable of batches.

A rank's share depends on the loader:

- map-style data: every world_size-th index of the sampler; the tail is filled up from the start
- with a batch_sampler, or batch_size=None: every world_size-th batch (item), whole; same tail
- list or tuple of batches: every world_size-th batch; same tail
- stream, other iterable of batches: every world_size-th item (batch); the tail is left out
- divided already: all that it yields

So all ranks take the same number of steps. For data that is divided already, a training takes that
of the rank with the most batches (`in_step.py`). With `drop_last` tails are left out everywhere. A
loader counts as divided already if its sampler knows ranks (DistributedSampler), or if its data or
order differs from rank to rank. `config.loader.shard` overrides this. Everything else about the
loader stays.

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, IterDataPipe, TensorDataset

from gallery_lib.comm import process_group
from gallery_lib.data.loading import samplers
from gallery_lib.data.loading.comparison import (
    differ_on_all_ranks,
    digest,
    length_of,
    of_data,
    try_on_all_ranks,
)
from gallery_lib.data.loading.in_step import InStep
from gallery_lib.data.loading.nesting import slots_of, with_attributes
from gallery_lib.data.loading.samplers import Place, ShardedSampler
from gallery_lib.data.loading.streams import ShardedBatches, reading, share_of
from gallery_lib.errors import InputError


@dataclass
class Share:
    """Share of one rank: the loader to iterate over, made of the caller's.

    `part` is the sampler in it that divides an order, if any. `in_step` names a loader that is
    divided already by something that does not know how many batches other ranks have.
    """

    loader: Any
    caller: Any = None
    part: ShardedSampler | None = None
    in_step: str = ""

    def begin(self, watched: Callable[[Iterator[Any]], Iterator[Any]]) -> Iterator[Any]:
        """Return the batches of one pass; `watched` wraps the loader's own iterator."""
        self.follow_caller()
        batches = watched(iter(self.loader))
        return InStep(batches, self.in_step, may_refill(self.loader)) if self.in_step else batches

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
    """Facts about a loader that the ranks exchange when their loaders are made."""

    kind: str
    place: Place | None = None
    length: int | None = None
    data: bytes = b""
    order: int = 0
    seed: int = dataclasses.field(default_factory=torch.initial_seed)
    number: int = dataclasses.field(default_factory=itertools.count().__next__)


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
        facts = process_group.all_ranks(_Facts("iterable"))
        _divided_by_samplers(facts, rank, world_size)
        if check and _divides_itself(loader, loader, facts):
            return Share(loader, in_step=str(facts[0].number))
        return Share(ShardedBatches(loader, rank, world_size))
    is_stream = isinstance(loader.dataset, IterableDataset)
    sampler = samplers.outermost(loader)
    inner = sampler.sampler if type(sampler) is BatchSampler else sampler
    names = list(dict.fromkeys(type(one).__name__ for one in (sampler, inner)))
    facts = process_group.all_ranks(
        _Facts(
            "stream" if is_stream else f"map-style data, {' of '.join(names)}",
            samplers.place_of(samplers.chain(loader)) if check else None,
            length_of(loader.dataset),
            b"" if is_stream or not check else of_data(loader.dataset),
            0 if is_stream else samplers.new_seed(sampler),
        )
    )
    if _divided_by_samplers(facts, rank, world_size):
        return Share(loader)
    name = str(facts[0].number)
    if is_stream:
        if check and _divided_by_torch(loader.dataset):
            return Share(loader)
        if check and _divides_itself(loader, loader.dataset, facts):
            return Share(loader, in_step=name)
        share = functools.partial(share_of, rank=rank, world_size=world_size)
        return Share(_copied(loader, dataset=reading(loader.dataset, share, world_size)))
    if len({fact.length for fact in facts}) > 1:
        lengths = ", ".join(f"rank {number}: {fact.length}" for number, fact in enumerate(facts))
        raise InputError(
            f"the ranks' data sets differ in length ({lengths}). Give every rank the whole data "
            "set; accelerate() divides it among them. If each has its own share, set "
            "config.loader.shard = 'never'.",
            parameter="loader",
        )
    if check and _differs_by_rank(loader, facts):
        return Share(loader, in_step=name)
    part = _part(loader, rank, world_size, facts[0].order)
    if check and samplers.divided_already(part.base, facts[0].length, part.next_order() or 0):
        _announce_own_division(f"what the sampler ({type(part.base).__name__}) yields")
        return Share(loader, in_step=name)
    return _with_part(loader, part)


def _unchanged(item: Any) -> Any:
    return item


def _divided_by_samplers(facts: list[_Facts], rank: int, world_size: int) -> bool:
    """Return whether the loader's samplers know ranks.

    Raises:
        InputError: if they are made for other ranks than the run's, or if the ranks' loaders are of
            different kinds.
    """
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
    return facts[0].place is not None


def _divided_by_torch(dataset: Any) -> bool:
    """Return whether a data pipe has a sharding filter, by which DataLoader divides it over ranks.

    Raises:
        InputError: for a data pipe without a sharding filter.
    """
    if not isinstance(dataset, IterDataPipe):
        return False
    from torch.utils.data import graph, graph_settings

    pipes = graph_settings.get_all_graph_pipes(graph.traverse_dps(dataset))
    if any(hasattr(pipe, "apply_sharding") for pipe in pipes):
        return True
    raise InputError(
        "the loader's data pipe has no sharding_filter(), so that it is not divided over the "
        "ranks: add one, or set config.loader.shard = 'never'.",
        parameter="loader",
    )


def _divides_itself(loader: Any, stream: Any, facts: list[_Facts]) -> bool:
    """Return whether a stream differs from rank to rank, and announce it if so.

    Nothing about a stream says so. The ranks compare the first `world_size` items that each reads,
    in a forked process. A source outside of the process, such as a queue, may notice that.

    Raises:
        InputError: where that cannot be known, or where streams that are alike differ in length.
    """
    what = f"the stream ({type(stream).__name__})"
    _, views = try_on_all_ranks(what, lambda: _first_view(loader, len(facts)), lambda view: view)
    lengths = [fact.length for fact in facts]
    if differ_on_all_ranks(views, what):
        _announce_own_division(what, lengths)
        return True
    if len(set(lengths)) > 1:
        raise InputError(
            f"{what} begins alike on all ranks, and differs in length "
            f"({', '.join(map(str, lengths))}). Give all ranks the same, or each its own share and "
            "config.loader.shard = 'never'.",
            parameter="loader",
        )
    return False


def _first_view(loader: Any, count: int) -> tuple[int, bytes] | None:
    """Return the worker and digest of the first `count` items of a loader's stream, if any."""
    if not isinstance(loader, DataLoader):
        items = list(itertools.islice(loader, count))
        return (0, digest(items)) if items else None
    looking = _copied(
        loader,
        dataset=reading(loader.dataset, functools.partial(_digest_alone, count=count)),
        batch_sampler=None,
        batch_size=None,
        collate_fn=_unchanged,
        pin_memory=False,
    )
    if loader.num_workers:  # this process is a trial's: its workers need not be started anew
        looking.multiprocessing_context = "fork"
    digests = DataLoader.__iter__(looking)
    return next(((worker, d) for worker, d in enumerate(digests) if d is not None), None)


def _digest_alone(items: Iterator[Any], count: int) -> Iterator[bytes | None]:
    first = list(itertools.islice(items, count))
    yield digest(first) if first else None


def _differs_by_rank(loader: DataLoader[Any], facts: list[_Facts]) -> bool:
    """Return whether each rank has data of its own, and announce it if so."""
    what = f"the data set ({type(loader.dataset).__name__})"
    if not differ_on_all_ranks([fact.data for fact in facts], what):
        return False
    if type(loader.dataset) is TensorDataset and len({fact.seed for fact in facts}) == len(facts):
        _announce(
            f"{what} differs from rank to rank, and so do the ranks' seeds, so it counts as drawn "
            "at random: each rank takes its part of the indices. If the ranks hold shares of one "
            "data set, set config.loader.shard = 'never'."
        )
        return False
    _announce_own_division(what)
    return True


def _announce_own_division(what: str, lengths: Sequence[int | None] = ()) -> None:
    """Say that the data is not divided, and that the ranks' `lengths` differ if they do."""
    uneven = ""
    if len(set(lengths)) > 1:
        text = ", ".join(map(str, lengths))
        uneven = f" The ranks' lengths differ ({text}); a training takes as many steps as the "
        uneven += "longest has."
    _announce(
        f"{what} differs from rank to rank, and so counts as divided among them already: each rank "
        f"takes all of its own.{uneven} config.loader.shard = 'always' divides it, 'never' leaves "
        "it without this line."
    )


def _announce(message: str) -> None:
    if process_group.rank() == 0:
        warnings.warn(f"accelerate(): {message}", stacklevel=2)


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
    """Return the share of a loader whose samples, or batches, come through `part`."""
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
    result: DataLoader[Any] = with_attributes(object.__new__(kind), slots_of(loader))
    for name, value in vars(loader).items():
        own_method = isinstance(value, types.MethodType) and value.__self__ is loader
        vars(result)[name] = types.MethodType(value.__func__, result) if own_method else value
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
