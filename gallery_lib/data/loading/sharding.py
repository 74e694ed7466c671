"""Divide a loader among the ranks: a DataLoader of any subclass, or an iterable of batches.

A rank's share depends on the loader:

- map-style data: every world_size-th index of the sampler; the tail is filled up from the start
- with a batch_sampler, or batch_size=None: every world_size-th batch (item), whole; same tail
- list or tuple of batches: every world_size-th batch; same tail
- stream, other iterable of batches: every world_size-th item (batch); the tail is left out
- divided already: all that it yields

So all ranks take the same number of steps. For data that is divided already, this number is that of
the rank with the most batches (`in_step.py`). With `drop_last` tails are left out everywhere. A
loader counts as divided already if its sampler knows ranks (DistributedSampler), or if its data or
order differs from rank to rank. `config.loader.shard` overrides this. Everything else about the
loader stays. The ranks compare notes once a pass, so all of them have to begin it. If a rank ends
with an error, the others wait for it until the process group's timeout.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, IterDataPipe, TensorDataset

from gallery_lib.comm import process_group
from gallery_lib.data.loading import rank_samplers
from gallery_lib.data.loading.agreed_order import ShardedSampler, order_kind
from gallery_lib.data.loading.digests import of_data
from gallery_lib.data.loading.length import length_of
from gallery_lib.data.loading.loader_copy import copied
from gallery_lib.data.loading.rank_samplers import Place
from gallery_lib.data.loading.share import Share
from gallery_lib.data.loading.streams import ShardedStream, announce_own_division, divides_itself
from gallery_lib.errors import InputError


@dataclass(frozen=True)
class _Facts:
    """Facts about a loader that the ranks exchange when their loaders are made."""

    kind: str
    place: Place | None
    length: int | None
    data: bytes
    seed: int = dataclasses.field(default_factory=torch.initial_seed)
    number: int = dataclasses.field(default_factory=itertools.count().__next__)


def sharded(loader: Any, rank: int, world_size: int, shard: str = "auto") -> Share:
    """Return this rank's share of `loader`; `shard` is `config.loader.shard`.

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
        facts = process_group.all_ranks(_Facts("iterable", None, None, b""))
        _divided_by_samplers(facts, rank, world_size)
        stream = ShardedStream(loader, rank, world_size, check=check)
        return Share(stream, stream, number=facts[0].number)
    is_stream = isinstance(loader.dataset, IterableDataset)
    place = rank_samplers.place_of(loader) if check else None
    facts = process_group.all_ranks(
        _Facts(
            "stream"
            if is_stream
            else f"map-style data, {order_kind(rank_samplers.outermost(loader))}",
            place,
            length_of(loader.dataset),
            b"" if is_stream or not check else of_data(loader.dataset),
        )
    )
    if _divided_by_samplers(facts, rank, world_size) or (
        is_stream and check and _divided_by_torch(loader.dataset)
    ):
        return Share(loader, sampled_by_rank=place is not None)
    if is_stream:
        lengths = [fact.length for fact in facts]
        stream = ShardedStream(
            loader.dataset,
            rank,
            world_size,
            check=check,
            workers=loader.num_workers,
            lengths=lengths,
        )
        return Share(copied(loader, dataset=stream), stream, number=facts[0].number)
    _check_same_length(facts)
    what = f"the data set ({type(loader.dataset).__name__})"
    if check and divides_itself([(0, 1, fact.data) for fact in facts], what):
        if type(loader.dataset) is not TensorDataset or len({fact.seed for fact in facts}) < len(
            facts
        ):
            announce_own_division(what)
            return Share(loader)
        _announce_drawn_data(what)
    share = _with_sharded_sampler(loader, rank, world_size, check=check)
    share.number = facts[0].number
    return share


def _announce_drawn_data(what: str) -> None:
    """Warn once, on rank 0, that tensors which differ from rank to rank are divided all the same.

    Each rank may have drawn them at random, without a seed.
    """
    if process_group.rank() == 0:
        warnings.warn(
            f"accelerate(): {what} differs from rank to rank, and so do the ranks' seeds, so it "
            "counts as drawn at random: each rank takes its part of the indices. If the ranks "
            "hold shares of one data set, set config.loader.shard = 'never'.",
            stacklevel=2,
        )


def _unchanged(batch: Any) -> Any:
    return batch


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


def _check_same_length(facts: list[_Facts]) -> None:
    if len({fact.length for fact in facts}) > 1:
        lengths = ", ".join(f"rank {rank}: {fact.length}" for rank, fact in enumerate(facts))
        raise InputError(
            f"the ranks' data sets differ in length ({lengths}). Give every rank the whole data "
            "set; accelerate() divides it among them. If each has its own share, set "
            "config.loader.shard = 'never'.",
            parameter="loader",
        )


def _with_sharded_sampler(
    loader: DataLoader[Any], rank: int, world_size: int, *, check: bool
) -> Share:
    def share_of(base: Any, drop_last: bool) -> ShardedSampler:
        return ShardedSampler(
            base,
            rank,
            world_size,
            drop_last=drop_last,
            samples=length_of(loader.dataset),
            check=check,
        )

    batches: Any = loader.batch_sampler
    if batches is None:
        sampler = share_of(loader.sampler, False)
        return Share(copied(loader, sampler=sampler), sampler)
    if (
        loader.batch_size is None
        or not isinstance(batches, BatchSampler)
        or batches.sampler is not loader.sampler
    ):
        sampler = share_of(batches, getattr(batches, "drop_last", False) is True)
        return Share(copied(loader, batch_sampler=sampler), sampler)
    sampler = share_of(loader.sampler, loader.drop_last)
    batches = copy.copy(batches)
    batches.sampler = sampler
    return Share(copied(loader, sampler=sampler, batch_sampler=batches), sampler)
