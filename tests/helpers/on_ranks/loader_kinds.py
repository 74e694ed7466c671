"""Data loaders of many kinds, each with what it is to show."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data.datapipes.iter import IterableWrapper

from gallery_lib.comm import process_group

SAMPLES = 20
DATA = list(range(SAMPLES))


def rank() -> int:
    return process_group.rank()


class NoLength(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(SAMPLES))


class Endless(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield from torch.randperm(SAMPLES).tolist()


class EndlessWithLength(Endless):
    def __len__(self) -> int:
        return SAMPLES


class OfSystem(Sampler[int]):
    """Sampler whose order nothing decides."""

    def __iter__(self) -> Iterator[int]:
        return iter(random.SystemRandom().sample(DATA, SAMPLES))

    def __len__(self) -> int:
        return SAMPLES


class Failing(OfSystem):
    def __iter__(self) -> Iterator[int]:
        yield 0
        if rank() == 1:
            raise OSError("the list of files is gone")
        yield from range(1, SAMPLES)


class ByRank(Sampler[int]):
    """Sampler that divides the data itself, and has no attribute that says so."""

    def __iter__(self) -> Iterator[int]:
        return iter(DATA[rank() :: process_group.world_size()])

    def __len__(self) -> int:
        return SAMPLES // process_group.world_size()


class NoLengthData(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[Any]):
    """Stream of `make(rank)`, divided among workers as PyTorch's documentation shows it."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        items = self.make(rank())
        return (
            itertools.islice(items, worker.id, None, worker.num_workers) if worker else iter(items)
        )


class Files(Dataset[str]):
    """Data set that keeps the paths of its files."""

    def __init__(self, folder: str, numbers: Any) -> None:
        self.paths = [Path(folder, f"{number}.jpg") for number in numbers]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> str:
        return self.paths[index].name


class Once(IterableDataset[Any]):
    """Stream over a generator that can be read once."""

    def __init__(self, items: Any) -> None:
        self.items = (item for item in items)

    def __iter__(self) -> Iterator[Any]:
        return self.items


class Counting(IterableDataset[int]):
    """Stream of a range, as PyTorch's page on IterableDataset has it."""

    def __init__(self) -> None:
        self.start, self.end = 0, SAMPLES

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end))


def _part_of_worker(worker: int) -> None:
    info = get_worker_info()
    data: Any = info.dataset
    size = -(-(data.end - data.start) // info.num_workers)
    data.start += worker * size
    data.end = min(data.start + size, data.end)


def _refilled(numbers: Any) -> Iterator[torch.Tensor]:
    """Yield the numbers in one buffer, which is filled again and again."""
    buffer = torch.zeros(1, dtype=torch.int64)
    return (buffer.fill_(number) for number in numbers)


class Halved(DataLoader[Any]):
    """Loader that changes its batches in `__iter__`."""

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield batch / 2


class BegunEarly(DataLoader[Any]):
    """Loader with one iterator for its whole life, made over the whole data."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.iterator = super().__iter__()

    def __iter__(self) -> Any:
        for _ in range(len(self)):
            yield next(self.iterator)


class Batches:
    """Iterable of batches that is no DataLoader."""

    def __init__(self, batches: Callable[[int], Any]) -> None:
        self.batches, self.batch_size = batches, 2

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches(rank()))


def _pairs(numbers: Any) -> list[Any]:
    return list(torch.as_tensor(list(numbers)).view(-1, 2))


def _share(number: int, of: int = SAMPLES) -> Any:
    return range(number, of, process_group.world_size())


def _whole(number: int) -> Any:
    return range(SAMPLES)


LOADERS: dict[str, Callable[..., Any]] = {
    "sequential": lambda **o: DataLoader(DATA, 2, **o),
    "shuffled": lambda **o: DataLoader(DATA, 2, shuffle=True, **o),
    "with replacement": lambda **o: DataLoader(
        DATA, 2, sampler=RandomSampler(DATA, replacement=True, num_samples=36), **o
    ),
    "weighted": lambda **o: DataLoader(
        DATA, 2, sampler=WeightedRandomSampler([1.0] * 10 + [3.0] * 10, 24), **o
    ),
    "few weighted": lambda **o: DataLoader(
        range(10000), 2, sampler=WeightedRandomSampler([1.0] * 10000, 4), **o
    ),
    "subset": lambda **o: DataLoader(DATA, 2, sampler=SubsetRandomSampler(range(4, 16)), **o),
    "no length": lambda **o: DataLoader(DATA, 2, sampler=NoLength(), **o),
    "data without length": lambda **o: DataLoader(NoLengthData(), 2, sampler=range(SAMPLES), **o),
    "endless": lambda **o: DataLoader(DATA, 2, sampler=Endless(), **o),
    "endless with length": lambda **o: DataLoader(DATA, 2, sampler=EndlessWithLength(), **o),
    "failing sampler": lambda **o: DataLoader(DATA, 2, sampler=Failing(), **o),
    "list": lambda **o: DataLoader(DATA, 2, sampler=DATA[::-1], **o),
    "five batches": lambda **o: DataLoader(
        DATA, batch_sampler=BatchSampler(range(10), 2, False), **o
    ),
    "five batches, drop_last": lambda **o: DataLoader(
        DATA, batch_sampler=BatchSampler(range(10), 2, True), **o
    ),
    "one sample": lambda **o: DataLoader([7], 2, **o),
    "no sample": lambda **o: DataLoader([], 2, **o),
    "DistributedSampler": lambda **o: DataLoader(DATA, 2, sampler=DistributedSampler(DATA), **o),
    "DistributedSampler inside": lambda **o: DataLoader(
        DATA, batch_sampler=BatchSampler(DistributedSampler(DATA), 2, False), **o
    ),
    "DistributedSampler of others": lambda **o: DataLoader(
        DATA, 2, sampler=DistributedSampler(DATA, num_replicas=4, rank=0), **o
    ),
    "DistributedSampler of rank 0": lambda **o: DataLoader(
        DATA, 2, sampler=DistributedSampler(DATA, num_replicas=2, rank=0), **o
    ),
    "by rank": lambda **o: DataLoader(DATA, 2, sampler=ByRank(), **o),
    "range by rank": lambda **o: DataLoader(DATA, 2, sampler=_share(rank()), **o),
    "subset by rank": lambda **o: DataLoader(
        DATA, 2, sampler=SubsetRandomSampler(_share(rank())), **o
    ),
    "Subset by rank": lambda **o: DataLoader(Subset(DATA, list(_share(rank()))), 2, **o),
    "list of each rank": lambda **o: DataLoader(list(_share(rank())), 2, **o),
    "tensors by rank": lambda **o: DataLoader(
        TensorDataset(torch.tensor(list(_share(rank())))), 2, **o
    ),
    "other order of parts": lambda **o: DataLoader(
        ConcatDataset([DATA[:2], DATA[2:4]][:: 1 - 2 * rank()]), 2, **o
    ),
    "files of each host": lambda **o: DataLoader(Files(f"/host{rank()}", range(2)), 2, **o),
    "files by rank": lambda **o: DataLoader(Files("/data", _share(rank())), 2, **o),
    "shuffled on rank 0 alone": lambda **o: DataLoader(DATA, 2, shuffle=rank() == 0, **o),
    "DistributedSampler on rank 0 alone": lambda **o: DataLoader(
        DATA, 2, sampler=DistributedSampler(DATA) if rank() == 0 else None, **o
    ),
    "stream on rank 1 alone": lambda **o: DataLoader(Stream(_share) if rank() else DATA, 2, **o),
    "other lengths": lambda **o: DataLoader(DATA[: 8 + rank()], 2, **o),
    "rank 0 alone has other data": lambda **o: DataLoader(
        DATA[::-1] if rank() == 0 else DATA, 2, **o
    ),
    "stream": lambda **o: DataLoader(Stream(_whole), 2, **o),
    "stream by rank": lambda **o: DataLoader(Stream(_share), 2, **o),
    "stream of batches": lambda **o: DataLoader(Stream(lambda _: _pairs(DATA)), None, **o),
    "stream once": lambda **o: DataLoader(Once(_share(rank())), 2, **o),
    "entropy": lambda **o: DataLoader(DATA, 2, sampler=OfSystem(), **o),
    "stream of worker_init_fn": lambda **o: DataLoader(
        Counting(), 2, worker_init_fn=_part_of_worker, **{"num_workers": 2, **o}
    ),
    "refilled stream": lambda **o: DataLoader(Stream(lambda _: _refilled(DATA)), None, **o),
    "refilled iterable": lambda **o: Batches(lambda _: _refilled(DATA)),
    "halved": lambda **o: Halved(DATA, 2, shuffle=True, **o),
    "begun early": lambda **o: BegunEarly(DATA, 2, **o),
    "list of batches": lambda **o: _pairs(range(10)),
    "data pipe": lambda **o: DataLoader(IterableWrapper(DATA), 2, **o),
    "generator": lambda **o: iter(_pairs(DATA)),
    "iterable": lambda **o: Batches(lambda _: _pairs(DATA)),
    "iterable by rank": lambda **o: Batches(lambda number: _pairs(_share(number))),
}
