"""A DataLoader whose batches arrive on the device, sharded over the ranks of the run.

Keeps everything about the user's loader: data set, sampler semantics, collate function, workers, generator,
`drop_last`. With several ranks, each takes every world_size-th index of what the sampler yields, so the union of
one step's batches is the same as a single process with the same global batch would see. A data set may offer
`set_epoch(epoch)` (called before each pass) and `finish_batch(batch, memory_format)` (called on the device, to turn
what crossed the bus into what the model takes).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
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


def _sharded(loader: DataLoader[Any], rank: int, world_size: int) -> DataLoader[Any]:
    """The same loader over this rank's share of the data."""
    if isinstance(loader.dataset, IterableDataset):
        raise InputError("a loader over an IterableDataset cannot be sharded by index: split it by rank in the data set itself.")
    if loader.batch_size is None or loader.sampler is None:
        raise InputError("a loader with a batch_sampler of its own cannot be sharded: give batch_size and sampler instead.")
    base = loader.sampler
    if isinstance(base, RandomSampler) and base.generator is None:
        # Each process would draw its own order, and samples would be seen twice or never.
        generator = torch.Generator().manual_seed(process_group.from_rank_0(torch.initial_seed() % 2**62))
        base = RandomSampler(base.data_source, base.replacement, base._num_samples, generator)
    sampler = ShardedSampler(base, rank, world_size, drop_last=loader.drop_last)
    return DataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        sampler=sampler,
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


def to_device(batch: Any, device: torch.device) -> Any:
    """`batch` with every tensor on `device`; any nesting of tuples, named tuples, lists and mappings."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(item, device) for item in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(to_device(item, device) for item in batch)
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    return batch


class DeviceLoader:
    """Iterates over `loader`; `len` is the number of this rank's batches in a pass."""

    def __init__(self, loader: DataLoader[Any], device: torch.device, memory_format: torch.memory_format, *, shard: bool = True) -> None:
        self.device, self.memory_format = device, memory_format
        world_size = process_group.world_size()
        self.loader = _sharded(loader, process_group.rank(), world_size) if shard and world_size > 1 else loader
        self.epoch = 0

    @property
    def dataset(self) -> Any:
        """The user's data set."""
        return self.loader.dataset

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(self.epoch)
        self.epoch += 1
        finish = getattr(self.dataset, "finish_batch", None)
        for batch in self.loader:
            on_device = to_device(batch, self.device)
            yield finish(on_device, self.memory_format) if finish else on_device
