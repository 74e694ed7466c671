"""Data loaders as users write them, by name; what one of them yields may depend on the rank."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from against_torch.loaders import OfPython, WithoutLength
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data.datapipes.iter import IterableWrapper

from gallery_lib.comm.process_group import rank, world_size

SAMPLES = 20
DATA = list(range(SAMPLES))


class EndlessWithLength(OfPython):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield from torch.randperm(self.length).tolist()


class Endless(WithoutLength):
    __iter__ = EndlessWithLength.__iter__


class OfSystem(OfPython):
    """Sampler whose order nothing decides."""

    def __iter__(self) -> Iterator[int]:
        return iter(random.SystemRandom().sample(DATA, SAMPLES))


class Failing(OfPython):
    def __iter__(self) -> Iterator[int]:
        yield 0
        if rank() == 1:
            raise OSError("the list of files is gone")
        yield from range(1, SAMPLES)


class ByRank(OfPython):
    """Sampler that divides the data itself, and has no attribute that says so."""

    def __iter__(self) -> Iterator[int]:
        return iter(_share(rank()))


class NoLengthData(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset[Any]):
    """Stream of `make(rank)`, divided among workers as PyTorch's documentation shows it."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        items = self.make(rank())
        if worker := get_worker_info():
            return itertools.islice(items, worker.id, None, worker.num_workers)
        return iter(items)


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


def _share(number: int) -> Any:
    return range(number, SAMPLES, world_size())


_SAMPLERS: dict[str, Callable[[], Any]] = {
    "no length": lambda: WithoutLength(SAMPLES),
    "endless": lambda: Endless(SAMPLES),
    "endless with length": lambda: EndlessWithLength(SAMPLES),
    "failing sampler": lambda: Failing(SAMPLES),
    "list": lambda: DATA[::-1],
    "DistributedSampler": lambda: DistributedSampler(DATA),
    "DistributedSampler of others": lambda: DistributedSampler(DATA, num_replicas=4, rank=0),
    "DistributedSampler of rank 0": lambda: DistributedSampler(DATA, num_replicas=2, rank=0),
    "DistributedSampler on rank 0 alone": lambda: None if rank() else DistributedSampler(DATA),
    "by rank": lambda: ByRank(SAMPLES // world_size()),
    "range by rank": lambda: _share(rank()),
    "subset by rank": lambda: SubsetRandomSampler(_share(rank())),
    "entropy": lambda: OfSystem(SAMPLES),
}
_DATA_SETS: dict[str, Callable[[], Any]] = {
    "sequential": lambda: DATA,
    "one sample": lambda: [7],
    "no sample": lambda: [],
    "Subset by rank": lambda: Subset(DATA, list(_share(rank()))),
    "list of each rank": lambda: list(_share(rank())),
    "noise": lambda: TensorDataset(torch.rand(8)),
    "other order of parts": lambda: ConcatDataset([DATA[:2], DATA[2:4]][:: 1 - 2 * rank()]),
    "files of each host": lambda: Files(f"/host{rank()}", range(2)),
    "files by rank": lambda: Files("/data", _share(rank())),
    "other lengths": lambda: DATA[: 8 + rank()],
    "rank 0 alone has other data": lambda: DATA if rank() else DATA[::-1],
    "stream on rank 1 alone": lambda: Stream(_share) if rank() else DATA,
    "stream": lambda: Stream(lambda _: DATA),
    "stream by rank": lambda: Stream(_share),
    "stream once": lambda: Once(_share(rank())),
    "data pipe": lambda: IterableWrapper(DATA),
}
_BATCHES: dict[str, Callable[[], Any]] = {
    "five batches": lambda: BatchSampler(range(10), 2, False),
    "five batches, drop_last": lambda: BatchSampler(range(10), 2, True),
    "DistributedSampler inside": lambda: BatchSampler(DistributedSampler(DATA), 2, False),
}
LOADERS: dict[str, Callable[..., Any]] = {
    **{n: lambda d=data, **o: DataLoader(d(), 2, **o) for n, data in _DATA_SETS.items()},
    **{n: lambda s=s, **o: DataLoader(DATA, 2, sampler=s(), **o) for n, s in _SAMPLERS.items()},
    **{n: lambda b=b, **o: DataLoader(DATA, batch_sampler=b(), **o) for n, b in _BATCHES.items()},
    "shuffled": lambda **o: DataLoader(DATA, 2, shuffle=True, **o),
    "shuffled on rank 0 alone": lambda **o: DataLoader(DATA, 2, shuffle=rank() == 0, **o),
    "few weighted": lambda **o: DataLoader(
        range(10000), 2, sampler=WeightedRandomSampler([1.0] * 10000, 4), **o
    ),
    "data without length": lambda **o: DataLoader(NoLengthData(), 2, sampler=range(SAMPLES), **o),
    "stream of batches": lambda **o: DataLoader(Stream(lambda _: _pairs(DATA)), None, **o),
    "stream of worker_init_fn": lambda **o: DataLoader(
        Counting(), 2, worker_init_fn=_part_of_worker, **{"num_workers": 2, **o}
    ),
    "refilled stream": lambda **o: DataLoader(Stream(lambda _: _refilled(DATA)), None, **o),
    "refilled iterable": lambda **o: Batches(lambda _: _refilled(DATA)),
    "halved": lambda **o: Halved(DATA, 2, shuffle=True, **o),
    "begun early": lambda **o: BegunEarly(DATA, 2, **o),
    "list of batches": lambda **o: _pairs(range(10)),
    "generator": lambda **o: iter(_pairs(DATA)),
    "iterable": lambda **o: Batches(lambda _: _pairs(DATA)),
    "iterable by rank": lambda **o: Batches(lambda number: _pairs(_share(number))),
}
