"""Each rank's share of a DataLoader's data.

Map-style data: every world_size-th index that the sampler yields, so the union of one step's batches is what a single
process with the same global batch would see. A stream (IterableDataset): every world_size-th item of it, in whole
rounds, so that all ranks take the same number of steps. Everything else about the loader stays as it was.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Sampler

from gallery_lib.comm import process_group
from gallery_lib.errors import InputError


class ShardedSampler(Sampler[int]):
    """Every `world_size`-th index that `base` yields, from `rank` on; all ranks get the same number.

    With `drop_last` the tail that does not fill all ranks is left out, otherwise it is filled up from the start.
    `base` must yield the same order on every rank.
    """

    def __init__(self, base: Any, rank: int, world_size: int, *, drop_last: bool) -> None:
        self.base, self.rank, self.world_size, self.drop_last = base, rank, world_size, drop_last

    def __len__(self) -> int:
        return len(self.base) // self.world_size if self.drop_last else -(-len(self.base) // self.world_size)

    def __iter__(self) -> Iterator[int]:
        indices = list(self.base)
        total = len(self) * self.world_size
        if total > len(indices):
            indices = list(itertools.islice(itertools.cycle(indices), total))
        return iter(indices[self.rank : total : self.world_size])


class ShardedStream(IterableDataset[Any]):
    """Every `world_size`-th item that the stream `base` yields, from `rank` on.

    The stream must yield the same items in the same order on every rank. It is cut in rounds of `world_size` items; a
    last round that is not full is left out, on every rank alike. With several data-loading workers, each worker of
    each rank reads the stream that `base` gives that worker, as in a run of one process: a data set that divides
    itself by `torch.utils.data.get_worker_info()` goes on doing so.
    """

    def __init__(self, base: IterableDataset[Any], rank: int, world_size: int) -> None:
        self.base, self.rank, self.world_size = base, rank, world_size

    def __getattr__(self, name: str) -> Any:
        if name == "base":  # not there yet while this is being unpickled in a worker
            raise AttributeError(name)
        return getattr(self.base, name)

    def __iter__(self) -> Iterator[Any]:
        stream = iter(self.base)
        while len(round_of_items := list(itertools.islice(stream, self.world_size))) == self.world_size:
            yield round_of_items[self.rank]


def _same_order_everywhere(sampler: Any) -> Any:
    """`sampler`, or for one that every process would shuffle differently, the same with one generator for all ranks."""
    if isinstance(sampler, RandomSampler) and sampler.generator is None:
        # Each process would draw its own order, and samples would be seen twice or never.
        generator = torch.Generator().manual_seed(process_group.from_rank_0(torch.initial_seed() % 2**62))
        return RandomSampler(sampler.data_source, sampler.replacement, sampler._num_samples, generator)
    return sampler


def _check_same_length(dataset: Any) -> None:
    lengths = process_group.all_ranks(len(dataset))
    if len(set(lengths)) > 1:
        found = ", ".join(f"rank {rank}: {length}" for rank, length in enumerate(lengths))
        raise InputError(
            f"the ranks' data sets differ in length ({found}). Give every rank the whole data set; accelerate() divides it among them."
        )


def sharded(loader: DataLoader[Any], rank: int, world_size: int) -> DataLoader[Any]:
    """The same loader over this rank's share. Raises InputError for one that cannot be divided, or that differs between ranks."""
    if loader.batch_size is None:
        raise InputError("a loader with a batch_sampler of its own cannot be sharded: give batch_size and sampler instead.")
    if isinstance(loader.dataset, IterableDataset):
        share: dict[str, Any] = {"dataset": ShardedStream(loader.dataset, rank, world_size)}
    else:
        _check_same_length(loader.dataset)
        sampler = ShardedSampler(_same_order_everywhere(loader.sampler), rank, world_size, drop_last=loader.drop_last)
        share = {"dataset": loader.dataset, "sampler": sampler}
    return DataLoader(
        **share,
        batch_size=loader.batch_size,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        drop_last=loader.drop_last,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )
