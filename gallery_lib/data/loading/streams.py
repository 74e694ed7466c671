"""Divide a stream among the ranks: an IterableDataset, or any iterable of batches.

A stream that is the same on all ranks is cut in rounds of `world_size` items, of which a rank takes
its own. A last round that is not full is left out on every rank. So all ranks take the same number
of steps, and no rank needs to hear of another. With several data-loading workers, each worker of
each rank divides what the data set gives that worker.

Nothing about a stream says whether it divides itself by rank. So `accelerate()` compares the first
`world_size` items that each rank reads, in a forked process (`trial.py`). If all are alike, the
stream is the same everywhere. If no two are alike, the stream divides itself, and is left as it is.
A source outside of the process, such as a queue, may notice the trial: `config.loader.shard` says
what to do without one.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader

from gallery_lib.comm import process_group
from gallery_lib.data.loading.digests import digest
from gallery_lib.data.loading.loader_copy import copied, copy_slots
from gallery_lib.data.loading.refilled import kept
from gallery_lib.errors import InputError

Note = tuple[int, bytes] | None
"""Worker, and digest of the first items that it read; None where there are no items."""


def divides_itself(notes: Sequence[Note], what: str) -> bool:
    """Return True if no two ranks have the same data, False if all have the same.

    `notes` has one note of every rank.

    Raises:
        InputError: on every rank when neither is so.
    """
    kinds = set(notes)
    if len(kinds) == 1:
        return False
    if None in kinds:
        empty = ", ".join(str(rank) for rank, note in enumerate(notes) if note is None)
        raise InputError(
            f"{what} has nothing at all for rank {empty}, and something for others. Give every "
            "rank a share, or the whole and config.loader.shard = 'always'.",
            parameter="loader",
        )
    if len(kinds) == len(notes):
        return True
    ranks_by_note = {
        note: [rank for rank, other in enumerate(notes) if other == note] for note in notes
    }
    groups = "; ".join(
        f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
        for ranks in ranks_by_note.values()
    )
    raise InputError(
        f"{what} begins alike on some ranks and not on others ({groups}). Give all ranks the same "
        "and config.loader.shard = 'always', or each rank its own share and config.loader.shard = "
        "'never'.",
        parameter="loader",
    )


def announce_own_division(what: str, lengths: Sequence[int | None] = ()) -> None:
    """Warn once, on rank 0, that the data is not divided, and of ranks' `lengths` that differ."""
    if process_group.rank() == 0:
        uneven = ""
        if len(set(lengths)) > 1:
            text = ", ".join(map(str, lengths))
            uneven = (
                f" The ranks' lengths differ ({text}); a training takes as many steps as the "
                "longest has."
            )
        warnings.warn(
            f"accelerate(): {what} differs from rank to rank, and so counts as divided among them "
            f"already: each rank takes all of its own.{uneven} config.loader.shard = 'always' "
            "divides it, 'never' leaves it without this line.",
            stacklevel=2,
        )


def first_note(loader: Any, count: int) -> Note:
    """Return the note of the first `count` items of a loader's stream; for a trial."""
    if not isinstance(loader, DataLoader):
        items = list(itertools.islice(loader, count))
        return (0, digest(items)) if items else None
    looking = copied(
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


def _unchanged(item: Any) -> Any:
    return item


def _digest_alone(items: Iterator[Any], count: int) -> Iterator[bytes | None]:
    first = list(itertools.islice(items, count))
    yield digest(first) if first else None


def share_of(items: Iterable[Any], rank: int, world_size: int) -> Iterator[Any]:
    """Yield the items of one rank: of each full round of `world_size` items that of its place.

    The rest of the round is read first, which may fill the memory of the item again: so it is kept.
    """
    own: Any = None
    for number, item in enumerate(items):
        place = number % world_size
        if place == rank:
            own = item if place == world_size - 1 else kept(item)
        if place == world_size - 1:
            yield own


class _Reading:
    """First base of the class of what `reading` returns, before the user's class."""

    def __init_subclass__(cls, **_: Any) -> None:
        """Keep the class from the user's `__init_subclass__`, a registry for instance."""


def reading(dataset: Any, read: Callable[[Iterator[Any]], Iterator[Any]], parts: int = 1) -> Any:
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
        "__reduce_ex__": lambda self, protocol: (reading, (dataset, read, parts)),
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
    object.__setattr__(result, "__dict__", vars(dataset))
    copy_slots(dataset, result)
    return result


class ShardedBatches:
    """Every `world_size`-th batch of an iterable of batches; attributes are those of the iterable.

    Its length, if it has one, is that of a rank's share.
    """

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
