"""Divide a loader among the ranks: a DataLoader of any subclass, or a list of batches.

A rank's share depends on the loader:

- map-style data: every world_size-th index of the sampler; the tail is filled up from the start
- with a batch_sampler, or batch_size=None: every world_size-th batch (item), whole; same tail
- list or tuple of batches: every world_size-th batch; same tail
- with a sampler that knows ranks (DistributedSampler): all that it yields
- stream or other iterable of batches: refused, since nobody knows whether the ranks have the same

So all ranks take the same number of steps. With `drop_last` tails are left out everywhere. Data and
orders that differ from rank to rank are refused by name: a share of a share would lose samples.
`config.loader.shard` overrides this. "never" leaves a loader as it is. "always" divides a stream,
too: a rank gets every world_size-th batch, and a round that is not full is left out.

The ranks agree when the loader is given to `accelerate()`, which is a collective call. A pass is
none: no rank waits for another in it, so that one may iterate alone.
"""

from __future__ import annotations

import copy
import itertools
import re
import types
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

from gallery_lib.comm import process_group
from gallery_lib.data.loading import random_states, samplers
from gallery_lib.data.loading.samplers import LengthBucketSampler, ShardedSampler
from gallery_lib.errors import InputError

_STORES = (list, tuple, range, np.ndarray, Tensor)


@dataclass
class Share:
    """Share of one rank: the loader to iterate over, made of the caller's.

    `part` is the sampler in it that divides an order, if any. `dealt` is (rank, world_size) where
    whole batches of the loader are dealt out.
    """

    loader: Any
    caller: Any = None
    part: ShardedSampler | None = None
    dealt: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self.loader) // (self.dealt[1] if self.dealt else 1)

    def follow_caller(self) -> None:
        """Take over batch_size and drop_last, which the caller may have changed since last time.

        Raises:
            InputError: for another sampler than at the time of `accelerate()`.
        """
        if self.part is None:
            return
        owner, name = samplers.owner_of_order(self.caller)
        if (base := getattr(owner, name)) is not self.part.base:
            raise InputError(
                f"the loader has got a new sampler ({type(base).__name__}) since accelerate(): "
                "give accelerate() the loader with that sampler.",
                parameter="loader",
            )
        if owner is not self.caller:
            own = vars(vars(self.loader)["batch_sampler"])
            own.update({key: value for key, value in vars(owner).items() if key != name})
        self.part.drop_last = _drops_last(self.caller)

    def check_used(self) -> None:
        """Raise InputError after the first batch of a loader that did not read its sampler."""
        if self.part is not None and not self.part.used:
            raise InputError(
                f"the loader is a {type(self.loader).__name__}, which does not read its own "
                "sampler, so that it cannot be divided over the ranks: give it a "
                "DistributedSampler and config.loader.shard = 'never', or do without the subclass.",
                parameter="loader",
            )


def _drops_last(loader: Any) -> bool:
    return getattr(loader.batch_sampler, "drop_last", False) is True


def sharded(loader: Any, rank: int, world_size: int, shard: str = "auto") -> Share:
    """Return this rank's share of `loader`; `shard` is `config.loader.shard`. A collective call.

    Raises:
        InputError: on every rank for a loader that cannot be divided, or that does not fit the
            loaders of the other ranks.
    """
    if shard == "never":
        return Share(loader)
    if isinstance(loader, (list, tuple)):
        batches: Any = loader
        loader = DataLoader(batches, batch_size=None, collate_fn=_unchanged)
    check = shard == "auto"
    is_stream = not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset)
    place = samplers.place_of(loader) if check else None
    kinds_of_samplers = dict.fromkeys(type(one).__name__ for one in samplers.chain(loader)[:2])
    kind = "a stream" if is_stream else " of ".join(kinds_of_samplers)
    seed = 0 if is_stream else samplers.new_seed(loader)
    kinds, places, seeds = zip(*process_group.all_ranks((kind, place, seed)), strict=True)
    _refuse_unlike(
        [
            f"{kind}, divided by rank" if place else kind
            for kind, place in zip(kinds, places, strict=True)
        ],
        "the kind of the loader",
    )
    if place is not None:
        _check_places(places, rank, world_size)
        return Share(loader)
    if is_stream:
        if check:
            stream = loader.dataset if isinstance(loader, DataLoader) else loader
            raise InputError(
                f"the loader is a stream ({type(stream).__name__}), of which nobody knows whether "
                "it divides itself by rank. Set config.loader.shard = 'never' if each rank has its "
                "own share, or 'always' to have the same stream divided.",
                parameter="loader",
            )
        if not getattr(loader, "in_order", True):
            raise InputError(
                "the loader is a stream with in_order=False, whose batches come to each rank in "
                "another order, so that they cannot be dealt out. Set in_order=True.",
                parameter="loader",
            )
        return Share(loader, dealt=(rank, world_size))
    data = loader.dataset
    kind = f"the data set ({type(data).__name__})"
    if not check or _drawn_at_random(data, kind):
        _refuse_unlike(process_group.all_ranks(str(_length_of(data))), kind)
    else:
        _refuse_unlike(process_group.all_ranks(_view_of_data(data)), kind)
    part = ShardedSampler(
        getattr(*samplers.owner_of_order(loader)),
        rank,
        world_size,
        drop_last=_drops_last(loader),
        seed=seeds[0],
    )
    if check:
        _check_order(part)
    return Share(_with_part(loader, part), loader, part)


def _unchanged(item: Any) -> Any:
    return item


def _refuse_unlike(views: list[str], what: str, hint: str = "give every rank the same") -> None:
    """Raise InputError, on every rank, unless all ranks' views of `what` are alike."""
    if len(set(views)) > 1:
        groups = "; ".join(
            f"rank {', '.join(str(rank) for rank, other in enumerate(views) if other == view)}"
            for view in dict.fromkeys(views)
        )
        raise InputError(
            f"{what} differs from rank to rank ({groups}), so that it cannot be divided among "
            "them. If each rank has its own share, set config.loader.shard = 'never'; to have it "
            f"divided all the same, 'always'; otherwise {hint}.",
            parameter="loader",
        )


def _drawn_at_random(data: Any, kind: str) -> bool:
    """Return whether the ranks' tensors and seeds all differ, which a warning says. Collective."""
    own = (type(data) is TensorDataset and _view_of_data(data), torch.initial_seed())
    views, seeds = (set(values) for values in zip(*process_group.all_ranks(own), strict=True))
    ranks = process_group.world_size()
    if ranks == 1 or False in views or len(views) < ranks or len(seeds) < ranks:
        return False
    if process_group.rank() == 0:
        warnings.warn(
            f"accelerate(): {kind} differs from rank to rank, and so do the ranks' seeds, so it "
            "counts as drawn at random: each rank takes its part of the indices. If the ranks hold "
            "shares of one data set, set config.loader.shard = 'never'.",
            stacklevel=2,
        )
    return True


def _check_places(places: tuple[tuple[int, int], ...], rank: int, world_size: int) -> None:
    for number, place in enumerate(places):
        number = number if len(places) > 1 else rank
        if place != (number, world_size):
            raise InputError(
                "the loader's sampler is for rank {} of {}".format(*place)
                + f", on the process that is rank {number} of {world_size}. Make it with the run's "
                "num_replicas and rank, or set config.loader.shard = 'never'.",
                parameter="loader",
            )


def _view_of_data(data: Any, depth: int = 0) -> str:
    """Return what tells a rank's map-style data set from another's: length, and stored values.

    No item is read. Lists, arrays and tensors that are the data set, or attributes as long as it,
    show their first, middle and last value. Subset and ConcatDataset lead to what they are made of.
    """
    length = _length_of(data)
    if isinstance(data, _STORES):
        places = sorted({0, length // 2, length - 1}) if length else []
        return f"{length} {[_named(data[place]) for place in places]}"
    parts = [type(data).__name__, str(length)]
    for name, value in sorted(getattr(data, "__dict__", {}).items()) if depth < 5 else ():
        if name in ("dataset", "datasets", "tensors"):
            inner = list(value)[:64] if isinstance(value, (list, tuple)) else [value]
            parts += [_view_of_data(one, depth + 1) for one in inner]
        elif isinstance(value, _STORES) and length and _length_of(value) == length:
            parts.append(_view_of_data(value))
    return "; ".join(parts)


def _named(value: Any) -> str:
    """Return a stored value in words, without folders and addresses, which differ between hosts."""
    return re.sub(r" at 0x[0-9a-fA-F]+|[^'\"(/]*/", "", repr(value))


def _length_of(data: Any) -> int | None:
    try:
        return len(data)
    except (TypeError, NotImplementedError):  # the latter by torch's own samplers
        return None


def _check_order(part: ShardedSampler) -> None:
    """Raise InputError unless all ranks' samplers yield the same from one seed. Collective.

    A copy of the sampler draws, so that a count of its passes stays as it is.
    """
    base, order = part.base, part.next_order() or 0
    inner = base.sampler if type(base) is BatchSampler else base
    if type(inner) in (SequentialSampler, RandomSampler, LengthBucketSampler):
        return
    with random_states.at(part.drawn_from(order)):
        try:
            view = str(list(itertools.islice(copy.copy(base), 2 * samplers.ROUNDS)))
        except Exception as error:  # which another rank may not have
            view = f"{type(error).__name__}: {error}"
    _refuse_unlike(
        process_group.all_ranks(view),
        f"the order of the sampler ({type(base).__name__})",
        "draw from torch's, Python's or numpy's global generator, or from one in an attribute",
    )


def _with_part(loader: DataLoader[Any], part: ShardedSampler) -> DataLoader[Any]:
    """Return a copy of `loader`, not begun, whose order comes from `part`.

    A DataLoader refuses to be given another sampler, and a plain DataLoader would lose what a
    subclass adds. The copy keeps everything else, including the options of any version of torch.
    """
    owner, name = samplers.owner_of_order(loader)
    parts: dict[str, Any] = {name: part}
    if owner is not loader:
        batches = copy.copy(owner)
        batches.sampler = part
        parts["batch_sampler"] = batches
    kind = type(loader)
    result: DataLoader[Any] = object.__new__(kind)
    for key, value in vars(loader).items():
        own_method = isinstance(value, types.MethodType) and value.__self__ is loader
        value = types.MethodType(value.__func__, result) if own_method else value
        vars(result)[key] = value  # DataLoader refuses an assignment
    vars(result).update(parts, _iterator=None, _IterableDataset_len_called=None)
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


def own_copy(batch: Any) -> Any:
    """Return a copy of `batch` in memory of its own, or `batch` where none can be made."""
    try:
        return copy.deepcopy(batch)
    except Exception:
        return batch


def share_of(batches: Iterable[Any], rank: int, world_size: int, refills: bool) -> Iterator[Any]:
    """Yield the batches of one rank: of each full round of `world_size` that of its place.

    A last round that is not full is left out on every rank, so no rank needs to hear of another.
    The rest of the round is read first. Where that `refills` the memory of the batch it is copied.
    """
    own: Any = None
    for number, batch in enumerate(batches):
        place = number % world_size
        if place == rank:
            own = own_copy(batch) if refills and place < world_size - 1 else batch
        if place == world_size - 1:
            yield own
