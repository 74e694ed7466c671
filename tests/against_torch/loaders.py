"""Data loaders and batches of the kinds that people write; items depend on their index alone."""

from __future__ import annotations

import itertools
import math
import os
import random
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
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

from .case import Case
from .models import MODELS

# --------------------------------------------------------------------------------------------------
# Batches of many container types, and the function that unpacks them for a training loop.
#
# An item of the data set is `(index, x, target)`. The index shows later which samples a rank has
# seen.


class Named(NamedTuple):
    index: Tensor
    x: Tensor
    y: Tensor


@dataclass
class Record:
    index: Tensor
    x: Tensor
    y: Tensor


class Encoding(UserDict[str, Any]):
    """A batch as tokenizers return it, with keys, attributes and `to`."""

    def to(self, device: Any) -> Encoding:
        self.data = {key: value.to(device) for key, value in self.data.items()}
        return self


class Graph:
    """A batch that is no container but has `.to(device)`, as graphs have it."""

    def __init__(self, **parts: Tensor) -> None:
        vars(self).update(parts)

    def to(self, device: Any, non_blocking: bool = False) -> Graph:
        moved = {name: t.to(device, non_blocking=non_blocking) for name, t in vars(self).items()}
        return Graph(**moved)


class Rows(list[Any]):
    """A batch whose type is a subclass of `list`."""


def as_dict(items: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(("index", "x", "y"), default_collate(list(items)), strict=True))


def with_more(items: Sequence[Any]) -> Any:
    """Return a batch with words, numbers, None and an inner dict beside its tensors."""
    words = [f"sample {int(i)}" for i, _, _ in items]
    more = {"size": len(items), "pair": (words[0], 1.5)}
    return {**as_dict(items), "words": words, "nothing": None, "more": more}


_KINDS: dict[str, Callable[[Sequence[Any]], Any]] = {
    "tuple": lambda items: tuple(default_collate(list(items))),
    "dict": as_dict,
    "ordered": lambda items: OrderedDict(as_dict(items)),
    "defaultdict": lambda items: defaultdict(list, as_dict(items)),
    "encoding": lambda items: Encoding(as_dict(items)),
    "named_tuple": lambda items: Named(**as_dict(items)),
    "dataclass": lambda items: Record(**as_dict(items)),
    "graph": lambda items: Graph(**as_dict(items)),
    "list_subclass": lambda items: Rows(as_dict(items).values()),
    "with_more": with_more,
}


@dataclass(frozen=True)
class Collate:
    """Function that makes a kind of batch; loading processes that are spawned get it by name."""

    kind: str

    def __call__(self, items: Sequence[Any]) -> Any:
        return _KINDS[self.kind](items)


BATCHES = {"list": None, **{kind: Collate(kind) for kind in _KINDS}}


def unpack(batch: Any) -> tuple[list[int], Tensor, Tensor]:
    """Return indices, x [N, …] and targets [N] of a batch of any kind."""
    if isinstance(batch, (Record, Graph)):
        batch = vars(batch)
    named = isinstance(batch, (dict, UserDict))
    index, x, y = (batch[name] for name in (("index", "x", "y") if named else range(3)))
    return torch.as_tensor(index).tolist(), x, y


def describe(value: Any) -> str:
    """Return a text with the types in a batch, its dtypes, shapes, layouts and other values."""
    if isinstance(value, Tensor):
        return f"{type(value).__name__}[{value.dtype}, {tuple(value.shape)}, {value.layout}]"
    name = type(value).__name__
    if isinstance(value, defaultdict):
        name += f" of {value.default_factory}"
    if isinstance(value, (list, tuple)):
        return f"{name}({', '.join(describe(v) for v in value)})"
    if isinstance(value, (Record, Graph)):
        value = vars(value)
    if not isinstance(value, (dict, UserDict)):
        return f"{name} {value!r}"
    return f"{name}({', '.join(f'{k}: {describe(v)}' for k, v in value.items())})"


# --------------------------------------------------------------------------------------------------
# Loaders


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
        last = min(first + self.batch_size, len(self.items))
        return self.collate([self.items[i] for i in range(first, last)])


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


class OfPython(WithoutLength):
    def __iter__(self) -> Iterator[int]:
        return iter(random.sample(range(self.length), self.length))

    def __len__(self) -> int:
        return self.length


class OfNumpy(OfPython):
    def __iter__(self) -> Iterator[int]:
        return iter(np.random.permutation(self.length).tolist())


class OfOwnGenerators(OfPython):
    """Sampler with generators of its own, which nobody has seeded."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.of_python, self.of_numpy = random.Random(), np.random.default_rng()
        self.of_torch = torch.Generator()
        self.of_torch.seed()

    def __iter__(self) -> Iterator[int]:
        order = self.of_numpy.permutation(self.of_python.sample(range(self.length), self.length))
        return iter(order[torch.randperm(self.length, generator=self.of_torch).numpy()].tolist())


Build = Callable[[Items, Case, dict[str, Any]], "DataLoader[Any]"]


@dataclass(frozen=True)
class Loader:
    """How a loader is made, and what several ranks have to see of its samples.

    `union` is `once` where every sample is seen once, and `any` where samples are drawn again.
    `missing` says what may be left out: `items` stands for (world size - 1) samples, `batches` for
    world size batches.
    """

    build: Build
    union: str = "once"
    missing: str = ""
    refusal: str = ""  # why an InputError is a right answer, on several processes
    one_process: bool = False
    only_list: bool = False  # it makes its own batches
    shuffles: bool = False
    endless: bool = False
    rare: bool = False  # it is not drawn, since one process is not compared with another


def _generator(case: Case) -> torch.Generator:
    return torch.Generator().manual_seed(case.seed + 77 + _place()[0])


def _subset(case: Case) -> list[int]:
    return list(range(0, case.samples, 2))


def _uneven(case: Case) -> list[list[int]]:
    cuts = [0, 1, 3, *range(5, case.samples, case.batch_size), case.samples]
    return [list(range(a, b)) for a, b in itertools.pairwise(cuts) if a < b]


def _batches_of(items: Items, case: Case) -> BatchSampler:
    return BatchSampler(SequentialSampler(items), case.batch_size, False)


def _distributed(items: Items, case: Case) -> Any:
    rank, world = _place()
    return DistributedSampler(items, world, rank, shuffle=True, seed=case.seed)


def _plain(**more: Any) -> Build:
    return lambda items, case, known: DataLoader(items, case.batch_size, **more, **known)


def _sampled(sampler: Callable[[Items, Case], Any]) -> Build:
    return lambda items, case, known: DataLoader(
        items, case.batch_size, sampler=sampler(items, case), **known
    )


def _streamed(kind: Any, by: str = "") -> Build:
    return lambda items, case, known: DataLoader(kind(items, by), case.batch_size, **known)


def _of_batches(sampler: Callable[[Items, Case], Any]) -> Build:
    return lambda items, case, known: DataLoader(items, batch_sampler=sampler(items, case), **known)


def _unbatched(items: Items, case: Case, known: dict[str, Any]) -> DataLoader[Any]:
    collate = known.pop("collate_fn") or default_collate
    batched = Batched(items, case.batch_size, collate)
    return DataLoader(batched, batch_size=None, shuffle=True, **known)


BATCHES_OF_ITS_OWN = "batches that are made by the user are dealt out whole"
WHOLE: dict[str, Any] = {"missing": "batches", "refusal": BATCHES_OF_ITS_OWN}
LOADERS: dict[str, Loader] = {
    "in_order": Loader(_plain()),
    "shuffled": Loader(_plain(shuffle=True), shuffles=True),
    "generator": Loader(
        lambda items, case, known: _plain(shuffle=True, generator=_generator(case))(
            items, case, known
        ),
        shuffles=True,
    ),
    "drop_last": Loader(_plain(shuffle=True, drop_last=True), missing="batches", shuffles=True),
    "replacement": Loader(
        _sampled(lambda items, case: RandomSampler(items, True, 10, generator=_generator(case))),
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
        _sampled(lambda _, case: SubsetRandomSampler(_subset(case), generator=_generator(case))),
        shuffles=True,
    ),
    "subset_without_generator": Loader(
        _sampled(lambda _, case: SubsetRandomSampler(_subset(case))), shuffles=True
    ),
    "sampler_without_length": Loader(
        _sampled(lambda items, _: WithoutLength(len(items))), missing="items", refusal="a length"
    ),
    "list_as_sampler": Loader(_sampled(lambda items, _: list(reversed(range(len(items)))))),
    "distributed_sampler": Loader(_sampled(_distributed)),
    "batch_sampler": Loader(_of_batches(_batches_of), **WHOLE),
    "uneven_batches": Loader(_of_batches(lambda _, case: _uneven(case)), **WHOLE),
    "unbatched": Loader(_unbatched, **WHOLE, shuffles=True),
    "stream": Loader(_streamed(Stream), refusal="a stream"),
    "stream_with_length": Loader(_streamed(StreamWithLength), refusal="a stream"),
    "stream_by_rank": Loader(
        _streamed(Stream, "rank"), missing="batches", refusal="a stream that divides itself"
    ),
    "subclass": Loader(
        lambda items, case, known: Shifting(items, case.batch_size, **known),
        refusal="a subclass's own __iter__",
        only_list=True,
    ),
    "augmented": Loader(
        lambda items, case, known: _plain(shuffle=True)(
            Augmented(items.length, items.shape, items.dtype), case, known
        ),
        one_process=True,
        shuffles=True,
    ),
    **{
        name: Loader(_sampled(lambda items, _, k=kind: k(len(items))), shuffles=True, rare=True)
        for name, kind in {
            "python_random": OfPython,
            "numpy_random": OfNumpy,
            "own_generators": OfOwnGenerators,
        }.items()
    },
    "random_batches": Loader(
        _of_batches(lambda items, case: BatchSampler(RandomSampler(items), case.batch_size, False)),
        shuffles=True,
        rare=True,
    ),
    "endless": Loader(
        _sampled(lambda items, _: Endless(len(items))),
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
