"""Position in the data: batches are counted as they are taken, and a pass can be gone on with.

A pass is known by the random states at its beginning and the number of batches taken since. After a
resume these states give the same order again, and what was taken is skipped. Batches that were
loaded ahead and not taken do not count.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from gallery_lib.comm import averages, process_group
from gallery_lib.data.loading import agreed_order, random_states
from gallery_lib.data.loading.agreed_order import ShardedSampler
from gallery_lib.data.loading.length_buckets import LengthBucketSampler
from gallery_lib.data.loading.random_states import DrawnFrom
from gallery_lib.data.loading.rank_samplers import chain
from gallery_lib.data.loading.sharding import Share
from gallery_lib.data.loading.skipping import samples_per_item, skip


class Progress:
    """Progress of one loader through its passes."""

    def __init__(self, share: Share) -> None:
        self.share = share
        self.passes = 0
        """Number of passes that have ended."""
        self.taken: int | None = None
        """Batches taken in the pass under way; None between two passes."""
        self._start: dict[str, Any] | None = None
        self._resumed: dict[str, Any] | None = None

    @contextlib.contextmanager
    def beginning(self) -> Iterator[None]:
        """Context in which the iterator of the next pass is made; `dropped` comes right after."""
        if self.taken is not None:  # the last pass was broken off
            self.passes += 1
        resumed, self._resumed = self._resumed, None
        if resumed is None:
            self.taken = self._to_drop = 0
            self._start = self._states()
            if self.share.part is not None:
                self.share.part.order = self._start["order"]
            yield
            return
        now = random_states.captured(devices=False)
        self._start, self.taken = resumed["start"], resumed["taken"]
        drawn_from = self._go_to(resumed["start"])
        skipping = skip(
            self.share,
            resumed["taken"],
            resumed["batch_size"],
            resumed["world_size"],
            process_group.world_size(),
        )
        self._to_drop = 0
        if isinstance(skipping, int):
            self._to_drop = skipping
        elif (order := resumed["start"].get("order")) is None:
            # Without workers it begins with the first batch.
            skipping.states = drawn_from
        elif isinstance(skipping, ShardedSampler):
            skipping.order = order
        else:  # begun on several processes
            skipping.states = agreed_order.drawn_from(skipping.base, order)
        yield
        random_states.restore(now)

    def counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Return the batches of the pass, each counted when it is taken."""
        for _ in range(self._to_drop):
            next(batches, None)
        return _Counted(self, batches)

    def _states(self) -> dict[str, Any]:
        """Return what decides the order of a pass that begins now."""
        share = self.share
        states = getattr(share.loader, "early_start", None) or states_of(share.loader)
        return {**states, "order": None if share.part is None else share.part.next_order()}

    def _go_to(self, start: dict[str, Any]) -> DrawnFrom:
        """Set the random states to the beginning of the pass; return those for its sampler."""
        loader = self.share.loader
        generators = _generators(loader)
        for sampler, items in zip(_bucket_samplers(loader), start["batch_items"], strict=False):
            sampler.next_batch_items = items

        def go() -> None:
            random_states.restore(start["global"])
            for generator, state in zip(generators, start["generators"], strict=False):
                generator.set_state(state)

        go()
        if start["new_workers"]:
            # The seed of the workers, which a DataLoader draws first.
            torch.empty((), dtype=torch.int64).random_(generator=getattr(loader, "generator", None))
        drawn_from = DrawnFrom(
            random_states.captured(devices=False),
            [(generator, generator.get_state()) for generator in generators],
        )
        go()
        return drawn_from

    def state_dict(self) -> dict[str, Any]:
        """Return the position as tensors and plain values."""
        part = self.share.part
        return {
            "passes": self.passes,
            "taken": self.taken,
            "batch_size": samples_per_item(self.share.loader),
            "world_size": process_group.world_size(),
            "start": self._start if self.taken is not None else self._states(),
            "order": None if part is None else (part.seed, part.steps_before + averages.count()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the next pass go on at the position that `state_dict` returned."""
        self.passes, self.taken = state["passes"], None
        part = self.share.part
        if part is not None and state.get("order") is not None:
            part.seed, steps = state["order"]
            part.steps_before = steps - averages.count()
        # Between two passes, the next one begins with none of its batches taken.
        self._resumed = {**state, "taken": state["taken"] or 0}


def states_of(loader: Any) -> dict[str, Any]:
    """Return the random states that decide the order of the next pass of a loader."""
    return {
        "global": random_states.captured(devices=False),
        "generators": [generator.get_state() for generator in _generators(loader)],
        # A loader whose workers stay draws no seed for them in its later passes.
        "new_workers": getattr(loader, "_iterator", None) is None,
        "batch_items": [sampler.batch_items for sampler in _bucket_samplers(loader)],
    }


def _owners(loader: Any) -> list[Any]:
    share = chain(loader)
    return [loader, *share, *(getattr(sampler, "base", None) for sampler in share)]


def _generators(loader: Any) -> list[torch.Generator]:
    return random_states.generators_of(_owners(loader))


def _bucket_samplers(loader: Any) -> list[LengthBucketSampler]:
    found: list[LengthBucketSampler] = []
    for owner in _owners(loader):
        if isinstance(owner, LengthBucketSampler) and not any(owner is one for one in found):
            found.append(owner)
    return found


class _Counted:
    """Iterator over a pass that tells its progress. An error does not end it."""

    def __init__(self, progress: Progress, batches: Iterator[Any]) -> None:
        self._progress, self._batches = progress, batches

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        progress = self._progress
        try:
            batch = next(self._batches)
        except StopIteration:
            progress.share.check_used()
            if progress.taken is not None:
                progress.passes, progress.taken = progress.passes + 1, None
            raise
        if not progress.taken:
            progress.share.check_used()
        progress.taken = (progress.taken or 0) + 1
        return batch


def follow(loader: DataLoader[Any]) -> Progress:
    """Return the progress of a DataLoader; its passes are counted while that is kept. In place.

    The loader does not hold its progress, which holds it. In a cycle it would outlive its last
    user, and so would workers that stay; ending them would then take five seconds for each.
    """
    kind = type(loader)
    progress = Progress(Share(loader))
    kept = weakref.ref(progress)

    def counted(self: DataLoader[Any]) -> Iterator[Any]:
        progress = kept()
        if progress is None:
            return kind.__iter__(self)
        with progress.beginning():
            batches = kind.__iter__(self)
        return progress.counted(batches)

    names = {"__iter__": counted, "__module__": kind.__module__, "__doc__": kind.__doc__}
    loader.__class__ = type(kind.__name__, (kind,), names)
    return progress
