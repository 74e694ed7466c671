"""Position in the data: batches are counted as they are taken, and a pass can be gone on with.

A pass is known by the random states at its beginning and the number of batches taken since. After a
resume these states give the same order again, and what was taken is skipped by index: samples that
are skipped are not loaded. Skipped is counted in items of the order that all ranks divide, so it
fits any number of ranks. What has no order of indices, such as a stream, is read again, and its
batches are dropped. Batches that were loaded ahead and not taken do not count.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from gallery_lib.comm import process_group
from gallery_lib.data.loading import random_states, samplers
from gallery_lib.data.loading.random_states import DrawnFrom
from gallery_lib.data.loading.samplers import LengthBucketSampler, ShardedSampler
from gallery_lib.data.loading.sharding import Share
from gallery_lib.errors import InputError


class Progress:
    """Progress of one loader through its passes."""

    def __init__(self, share: Share) -> None:
        self.share = share
        self.passes = 0  # number of passes that have ended
        # batches taken in the pass under way; None between two passes
        self.taken: int | None = None
        self._start: dict[str, Any] | None = None
        self._resumed: dict[str, Any] | None = None
        self._to_drop = 0

    @contextlib.contextmanager
    def beginning(self) -> Iterator[None]:
        """Context in which the iterator of the next pass is made; `counted` comes right after."""
        if self.taken is not None:  # the last pass was broken off
            self.passes += 1
        resumed, self._resumed = self._resumed, None
        self._to_drop = 0
        if resumed is None:
            self.taken = 0
            self._start = self._states()
            if self.share.part is not None:
                self.share.part.order = self._start["order"]
            yield
            return
        now = random_states.captured(devices=False)
        self._start, self.taken = resumed["start"], resumed["taken"]
        drawn_from = _go_to(self.share.loader, resumed["start"])
        part = self._part(resumed)
        if part is None:
            self._to_drop = resumed["taken"]
        elif resumed["start"]["order"] is None:  # without workers it begins with the first batch
            part.states = drawn_from
        else:
            part.order = resumed["start"]["order"]
        yield
        random_states.restore(now)

    def _part(self, resumed: dict[str, Any]) -> ShardedSampler | None:
        """Return the sampler that leaves out what the pass has had; None: there is no order."""
        before, now = resumed["world_size"], process_group.world_size()
        loader, part = self.share.loader, self.share.part
        if part is None and isinstance(loader, DataLoader):
            part = None if isinstance(loader.dataset, IterableDataset) else _with_part(loader)
        if part is not None:
            items = resumed["taken"] * before * (resumed["batch_size"] or 1)
            part.skip = items * part.world_size // now  # a rank may have a loader for itself
        elif before != now:
            raise InputError(
                f"the checkpoint is of {before} process(es) in the middle of a pass through a "
                f"stream ({type(loader).__name__}), whose position is known for as many alone. Go "
                f"on with {before}, or give a loader of a map-style data set.",
                parameter="resume",
            )
        return part

    def counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Return the batches of the pass, each counted when it is taken."""
        for _ in range(self._to_drop):
            next(batches, None)
        return _Counted(self, batches)

    def _states(self) -> dict[str, Any]:
        share = self.share
        states = getattr(share.loader, "early_start", None) or _states_of(share.loader)
        return {**states, "order": None if share.part is None else share.part.next_order()}

    def state_dict(self) -> dict[str, Any]:
        """Return the position as tensors and plain values."""
        loader, part = self.share.loader, self.share.part
        return {
            "passes": self.passes,
            "taken": self.taken,
            "batch_size": loader.batch_size if samplers.divides_samples(loader) else None,
            "world_size": process_group.world_size(),
            "start": self._start if self.taken is not None else self._states(),
            "order": None
            if part is None
            else (part.seed, part.steps_before + process_group.training_place()[0]),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the next pass go on at the position that `state_dict` returned."""
        self.passes, self.taken = state["passes"], None
        part = self.share.part
        if part is not None and state["order"] is not None:
            part.seed, steps = state["order"]
            part.steps_before = steps - process_group.training_place()[0]
        # Between two passes, the next one begins with none of its batches taken.
        self._resumed = {**state, "taken": state["taken"] or 0}


def _states_of(loader: Any) -> dict[str, Any]:
    return {
        "global": random_states.captured(devices=False),
        "generators": [generator.get_state() for generator in _generators(loader)],
        # A loader whose workers stay draws no seed for them in its later passes.
        "new_workers": getattr(loader, "_iterator", None) is None,
        "batch_items": [
            sampler.next_batch_items or sampler.batch_items for sampler in _bucket_samplers(loader)
        ],
    }


def _generators(loader: Any) -> list[torch.Generator]:
    return random_states.generators_of([loader, *samplers.chain(loader)])


def _bucket_samplers(loader: Any) -> list[LengthBucketSampler]:
    return [one for one in samplers.chain(loader) if isinstance(one, LengthBucketSampler)]


def _go_to(loader: Any, start: dict[str, Any]) -> DrawnFrom:
    """Set the random states to the beginning of a pass; return those for its sampler."""
    generators = _generators(loader)
    for sampler, items in zip(_bucket_samplers(loader), start["batch_items"], strict=False):
        sampler.next_batch_items = items  # of as many ranks as have begun the pass

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
        [functools.partial(one.set_state, one.get_state()) for one in generators],
    )
    go()
    return drawn_from


def _with_part(loader: DataLoader[Any]) -> ShardedSampler:
    """Return the sampler that a loader of one process has its order from. In place."""
    owner, name = samplers.owner_of_order(loader)
    present = getattr(owner, name)
    if not isinstance(present, ShardedSampler):
        # Not by assignment, which a DataLoader refuses.
        present = vars(owner)[name] = ShardedSampler(present, 0, 1)
    return present


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


class EarlyWorkers(DataLoader[Any]):
    """DataLoader whose `begin` starts the workers of its first pass, before the model is built.

    Forking a worker makes the memory of this process copy-on-write: the first steps of a model that
    was built before would copy its weights, page by page. The workers also load batches meanwhile.
    The first pass has the same batches as without `begin`, if nobody else draws from `generator`.
    """

    _early: Any = None
    # random states at the beginning of a pass whose workers have started early
    early_start: dict[str, Any] | None = None

    def begin(self) -> None:
        """Start the workers of the first pass."""
        if self._early is None:
            self.early_start = _states_of(self)
            self._early = super().__iter__()

    def __iter__(self) -> Any:
        early, self._early, self.early_start = self._early, None, None
        return super().__iter__() if early is None else early
