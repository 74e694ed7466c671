"""Data loaders of the kinds that people write, over items that depend on their index alone."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
    default_convert,
    get_worker_info,
)

from .batches import BATCHES
from .case import Case
from .models import MODELS


class Items(Dataset[Any]):
    """Map-style data set of `length` items `(index, x, target)`."""

    def __init__(self, length: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.length, self.shape, self.dtype = length, shape, dtype

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.length:
            raise IndexError(index)
        generator = torch.Generator().manual_seed(1000 + index)
        if self.dtype is torch.int64:
            x = torch.randint(11, self.shape, generator=generator)
        else:
            wide = torch.complex64 if self.dtype.is_complex else torch.float64
            x = torch.randn(self.shape, generator=generator, dtype=wide).to(self.dtype)
        return index, x, torch.randn((), generator=generator, dtype=torch.float64).float()


class Augmented(Items):
    """Items with noise from torch's global generator, as transforms draw it."""

    def __getitem__(self, index: int) -> Any:
        index, x, target = super().__getitem__(index)
        return index, x, target + torch.rand(())


class Batched(Items):
    """Map-style data set of ready batches, for `batch_size=None`."""

    def __init__(self, items: Items, batch_size: int, collate: Callable[[Any], Any]) -> None:
        self.items, self.batch_size, self.collate = items, batch_size, collate

    def __len__(self) -> int:
        return -(-len(self.items) // self.batch_size)

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        first = index * self.batch_size
        return self.collate(
            [self.items[i] for i in range(first, min(first + self.batch_size, len(self.items)))]
        )


def _place() -> tuple[int, int]:
    """Return rank and world size as a user's script looks them up."""
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Stream(IterableDataset[Any]):
    """Stream of the items in order, of which every worker reads a share.

    With `by="rank"` every rank reads a share of its own, too.
    """

    def __init__(self, items: Items, by: str = "") -> None:
        self.items = items
        self.part, self.parts = _place() if by == "rank" else (0, 1)

    def __iter__(self) -> Iterator[Any]:
        part, parts = self.part, self.parts
        if worker := get_worker_info():
            part, parts = part + parts * worker.id, parts * worker.num_workers
        return (self.items[i] for i in range(part, len(self.items), parts))


class StreamWithLength(Stream):
    def __len__(self) -> int:
        return len(self.items)


class Shifting(DataLoader[Any]):
    """Loader that changes its batches in `__iter__`, as prefetching subclasses do."""

    def __iter__(self) -> Any:
        for index, x, y in super().__iter__():
            yield [index, x, y + 1]


class WithoutLength(Sampler[int]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))


class Endless(WithoutLength):
    def __iter__(self) -> Iterator[int]:
        return itertools.cycle(range(self.length))


@dataclass(frozen=True)
class Loader:
    """How a loader is made, and what several ranks have to see of its samples.

    `union` is `once` where every sample is seen once, and `any` where samples are drawn again.
    `missing` says what may be left out: `items` stands for (world size - 1) samples, `batches` for
    world size batches.
    """

    build: Callable[[Items, Case, dict[str, Any]], DataLoader[Any]]
    union: str = "once"
    missing: str = ""
    refusal: str = ""  # why an InputError is a right answer, on several processes
    one_process: bool = False
    only_list: bool = False  # it makes its own batches
    shuffles: bool = False
    endless: bool = False


def _generator(case: Case) -> torch.Generator:
    return torch.Generator().manual_seed(case.seed + 77)


def _subset(case: Case) -> list[int]:
    return list(range(0, case.samples, 2))


def _uneven(case: Case) -> list[list[int]]:
    cuts = [0, 1, 3, *range(5, case.samples, case.batch_size), case.samples]
    return [list(range(a, b)) for a, b in itertools.pairwise(cuts) if a < b]


def _distributed(items: Items, case: Case, known: dict[str, Any]) -> DataLoader[Any]:
    rank, world = _place()
    sampler: Any = DistributedSampler(items, world, rank, shuffle=True, seed=case.seed)
    return DataLoader(items, case.batch_size, sampler=sampler, **known)


def _plain(**more: Any) -> Callable[[Items, Case, dict[str, Any]], DataLoader[Any]]:
    return lambda items, case, known: DataLoader(items, case.batch_size, **more, **known)


def _sampled(
    sampler: Callable[[Items, Case], Any],
) -> Callable[[Items, Case, dict[str, Any]], DataLoader[Any]]:
    return lambda items, case, known: DataLoader(
        items, case.batch_size, sampler=sampler(items, case), **known
    )


def _streamed(kind: Any, by: str = "") -> Callable[[Items, Case, dict[str, Any]], DataLoader[Any]]:
    return lambda items, case, known: DataLoader(kind(items, by), case.batch_size, **known)


def _unbatched(items: Items, case: Case, known: dict[str, Any]) -> DataLoader[Any]:
    collate = known.pop("collate_fn") or default_collate
    return DataLoader(
        Batched(items, case.batch_size, collate), batch_size=None, shuffle=True, **known
    )


BATCHES_OF_ITS_OWN = "batches that are made by the user are dealt out whole"
LOADERS: dict[str, Loader] = {
    "in_order": Loader(_plain()),
    "shuffled": Loader(_plain(shuffle=True), shuffles=True),
    "generator": Loader(
        lambda items, case, known: DataLoader(
            items, case.batch_size, shuffle=True, generator=_generator(case), **known
        ),
        shuffles=True,
    ),
    "drop_last": Loader(_plain(shuffle=True, drop_last=True), missing="batches", shuffles=True),
    "replacement": Loader(
        _sampled(
            lambda items, case: RandomSampler(
                items, replacement=True, num_samples=10, generator=_generator(case)
            )
        ),
        union="any",
    ),
    "weighted": Loader(
        _sampled(
            lambda items, case: WeightedRandomSampler(
                [1.0 + i for i in range(len(items))], 10, generator=_generator(case)
            )
        ),
        union="any",
    ),
    "subset": Loader(
        _sampled(
            lambda items, case: SubsetRandomSampler(_subset(case), generator=_generator(case))
        ),
        shuffles=True,
    ),
    "subset_without_generator": Loader(
        _sampled(lambda items, case: SubsetRandomSampler(_subset(case))), shuffles=True
    ),
    "sampler_without_length": Loader(
        _sampled(lambda items, case: WithoutLength(len(items))), missing="items", refusal="a length"
    ),
    "list_as_sampler": Loader(_sampled(lambda items, case: list(reversed(range(len(items)))))),
    "distributed_sampler": Loader(_distributed),
    "batch_sampler": Loader(
        lambda items, case, known: DataLoader(
            items,
            batch_sampler=BatchSampler(SequentialSampler(items), case.batch_size, False),
            **known,
        ),
        missing="batches",
        refusal=BATCHES_OF_ITS_OWN,
    ),
    "uneven_batches": Loader(
        lambda items, case, known: DataLoader(items, batch_sampler=_uneven(case), **known),  # type: ignore[arg-type]
        missing="batches",
        refusal=BATCHES_OF_ITS_OWN,
    ),
    "unbatched": Loader(_unbatched, missing="batches", refusal=BATCHES_OF_ITS_OWN, shuffles=True),
    "stream": Loader(_streamed(Stream), missing="items"),
    "stream_with_length": Loader(_streamed(StreamWithLength), missing="items"),
    "stream_by_rank": Loader(
        _streamed(Stream, "rank"), missing="batches", refusal="a stream that divides itself"
    ),
    "subclass": Loader(
        lambda items, case, known: Shifting(items, case.batch_size, **known),
        refusal="a subclass's own __iter__",
        only_list=True,
    ),
    "augmented": Loader(
        lambda items, case, known: DataLoader(
            Augmented(items.length, items.shape, items.dtype),
            case.batch_size,
            shuffle=True,
            **known,
        ),
        one_process=True,
        shuffles=True,
    ),
    "endless": Loader(
        _sampled(lambda items, case: Endless(len(items))),
        union="any",
        refusal="a length",
        endless=True,
    ),
}


def items_of(case: Case) -> Items:
    """Return the data set of a case."""
    model = MODELS[case.model]
    return Items(case.samples, model.shape, model.dtype)


def expected(case: Case) -> list[int]:
    """Return the indices of the samples of one epoch, all ranks together."""
    return _subset(case) if case.loader.startswith("subset") else list(range(case.samples))


def shuffled(case: Case) -> int:
    """Return how many things of one epoch are put in a drawn order: samples, or whole batches."""
    whole = LOADERS[case.loader].refusal == BATCHES_OF_ITS_OWN
    return math.ceil(len(expected(case)) / (case.batch_size if whole else 1))


def build(case: Case) -> DataLoader[Any]:
    """Return a new loader of a case, as a user writes it."""
    known: dict[str, Any] = {"num_workers": case.workers, "collate_fn": BATCHES[case.batch]}
    if case.workers == 2:
        known["persistent_workers"] = True
    return LOADERS[case.loader].build(items_of(case), case, known)


def validation(case: Case) -> DataLoader[Any]:
    """Return the loader for evaluation."""
    return DataLoader(items_of(case), 2 * case.batch_size)


class RanOutError(Exception):
    """Raised when the oracle would train beyond the samples that the product has seen."""


class Replay:
    """Loader of the oracle: batches of the samples that a rank has seen, epoch after epoch."""

    def __init__(
        self, case: Case, name: str, epochs: list[list[list[int]]], length: int | None
    ) -> None:
        self.items, self.epochs, self.length = items_of(case), iter(epochs), length
        own = name == "train"
        self.collate = (BATCHES[case.batch] if own else None) or default_collate
        self.shift = own and case.loader == "subclass"
        # DataLoader does the same with batch_size=None.
        self.convert = default_convert if own and case.loader == "unbatched" else None

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError("this loader has no length")
        return self.length

    def __iter__(self) -> Iterator[Any]:
        epoch = next(self.epochs, None)
        if epoch is None:
            raise RanOutError
        for indices in epoch:
            batch = self.collate([self.items[i] for i in indices])
            if self.convert is not None:
                batch = self.convert(batch)
            yield [batch[0], batch[1], batch[2] + 1] if self.shift else batch
