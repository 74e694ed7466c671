"""States of the random generators of a process: Python's, numpy's, torch's on CPU and GPU.

A captured state holds tensors and plain values alone, so `torch.load(…, weights_only=True)` reads
it back.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch


def captured(*, devices: bool = True) -> dict[str, Any]:
    """Return the states of this process's global generators; of CUDA's with `devices`."""
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": _plain(np.random.get_state()),
        "torch": torch.get_rng_state(),
    }
    if devices and torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _plain(numpy_state: Any) -> tuple[Any, ...]:
    name, keys, *rest = numpy_state
    return (str(name), torch.from_numpy(keys.astype(np.int64)), *rest)


def restore(states: dict[str, Any]) -> None:
    """Set the generators of this process to what `captured` returned, as far as they exist here."""
    random.setstate(states["python"])
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


@dataclass(frozen=True)
class DrawnFrom:
    """Random states at which a sampler draws the order of a pass."""

    common: dict[str, Any]  # of the process's own generators, as `captured` returns them
    set_generators: list[Callable[[], object]]  # calls that set the sampler's generators


def seeded(seed: int, owners: Sequence[Any]) -> DrawnFrom:
    """Return the states that `seed` gives: the process's generators, and those of `owners`.

    A generator of an owner is any attribute that is one of torch, of Python or of numpy.
    """
    common = {
        "python": random.Random(seed).getstate(),
        "numpy": _plain(np.random.RandomState(seed % 2**32).get_state()),
        "torch": torch.Generator().manual_seed(seed).get_state(),
    }
    calls: list[Callable[[], object]] = []
    for value in (v for owner in owners for v in getattr(owner, "__dict__", {}).values()):
        if isinstance(value, torch.Generator):
            calls.append(partial(value.manual_seed, seed))
        elif isinstance(value, random.Random):
            calls.append(partial(value.seed, seed))
        elif isinstance(value, np.random.RandomState):
            calls.append(partial(value.seed, seed % 2**32))
        elif isinstance(value, np.random.Generator):
            bits = value.bit_generator
            calls.append(partial(setattr, bits, "state", type(bits)(seed).state))
    return DrawnFrom(common, calls)


@contextlib.contextmanager
def at(states: DrawnFrom | None) -> Iterator[None]:
    """Context in which a sampler draws; nothing happens without states.

    Afterwards the process's own generators stand where they stood before.
    """
    if states is None:
        yield
        return
    for call in states.set_generators:
        call()
    before = captured(devices=False)
    restore(states.common)
    try:
        yield
    finally:
        restore(before)


def generators_of(owners: Sequence[Any]) -> list[torch.Generator]:
    """Return the distinct generators that objects have as their attribute `generator`."""
    generators = [getattr(owner, "generator", None) for owner in owners]
    return list({id(g): g for g in generators if isinstance(g, torch.Generator)}.values())
