"""Divide a stream among the ranks: an IterableDataset, or any iterable of batches.

A stream that is the same on all ranks is cut in rounds of `world_size` items, of which a rank takes
its own. A last round that is not full is left out on every rank. So all ranks take the same number
of steps, and no rank needs to hear of another. With several data-loading workers, each worker of
each rank divides what the data set gives that worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gallery_lib.data.loading.nesting import own_copy, slots_of, with_attributes
from gallery_lib.errors import InputError


def share_of(items: Iterable[Any], rank: int, world_size: int) -> Iterator[Any]:
    """Yield the items of one rank: of each full round of `world_size` items that of its place.

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
    return with_attributes(result, slots_of(dataset))


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
