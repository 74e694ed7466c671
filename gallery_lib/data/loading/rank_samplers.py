"""Find samplers that know ranks: they divide the data themselves, as DistributedSampler does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Sampler

_REPLICAS = ("num_replicas", "world_size", "_num_replicas", "_world_size")
_RANK = ("rank", "_rank")
_DEEPEST = 4
"""Maximum depth of the search for samplers in samplers in batch samplers."""


@dataclass(frozen=True)
class Place:
    """Rank, and number of ranks, for which the sampler called `name` is made."""

    name: str
    rank: int
    replicas: int

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.replicas}"


def outermost(loader: Any) -> Any:
    """Return the sampler that a loader's indices, or batches of them, come from."""
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


def chain(loader: Any) -> list[Any]:
    """Return the samplers of a loader, including nested ones, from the outside inwards."""
    samplers: list[Any] = []
    for name in ("batch_sampler", "sampler"):
        for sampler in below(getattr(loader, name, None)):
            if not any(sampler is other for other in samplers):
                samplers.append(sampler)
    return samplers


def below(sampler: Any, depth: int = 0) -> Iterator[Any]:
    """Yield a sampler and those in its attributes, from the outside inwards."""
    if sampler is None or depth > _DEEPEST:
        return
    yield sampler
    for value in list(getattr(sampler, "__dict__", {}).values()):
        if isinstance(value, Sampler) or _place(value) is not None:
            yield from below(value, depth + 1)


def _place(sampler: Any) -> Place | None:
    """Return the place that the attributes of one sampler name, or None if they name none."""
    own = getattr(sampler, "__dict__", {})
    replicas = next((own[name] for name in _REPLICAS if type(own.get(name)) is int), None)
    rank = next((own[name] for name in _RANK if type(own.get(name)) is int), None)
    if replicas is None or rank is None or not hasattr(type(sampler), "__iter__"):
        return None
    return Place(type(sampler).__name__, rank, replicas)


def places(sampler: Any) -> Iterator[Place]:
    """Yield the ranks for which a sampler, or one in its attributes, is made."""
    return (place for inner in below(sampler) if (place := _place(inner)))


def place_of(loader: Any) -> Place | None:
    """Return for which rank a loader's samplers are made; None if none of them knows ranks."""
    return next((place for sampler in chain(loader) if (place := _place(sampler))), None)
