"""Divide a stream among the ranks: an IterableDataset, or any iterable of batches.

Nothing about a stream says whether it divides itself by rank. So in the first pass the ranks
compare the first `world_size` items that each of them reads. If all are alike, the stream is the
same everywhere, and a rank takes every `world_size`-th item. If no two are alike, the stream
divides itself, and is left as it is.
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from gallery_lib.comm import process_group
from gallery_lib.data.loading.digests import digest
from gallery_lib.errors import InputError

_NOTHING_YET, _ITEMS, _EMPTY, _FAILED = 0, 1, 2, 3
"""States of a worker's stream: the first byte of its note, before the digest of its items."""
_LONGEST_WAIT_SECONDS = 60.0
"""Timeout for the first items of a worker whose batches come later than another's."""

Note = tuple[int, int, bytes]  # (worker, state, digest) of one rank
_NONE_READ: Note = (0, _FAILED, b"")


def divides_itself(notes: list[Note], what: str) -> bool:
    """Return True if no two ranks have the same data, False if all have the same.

    `notes` has one note of every rank.

    Raises:
        InputError: on every rank when neither is so, or when a rank could not read.
    """
    failed = [str(rank) for rank, (_, state, _) in enumerate(notes) if state == _FAILED]
    if failed:
        raise InputError(
            f"{what} could not be read on rank {', '.join(failed)}; its own message says why.",
            parameter="loader",
        )
    with_items = [(worker, item_digest) for worker, state, item_digest in notes if state != _EMPTY]
    kinds = len(set(with_items))
    if kinds == 0 or (kinds == 1 and len(with_items) == len(notes)):
        return False
    if kinds == len(with_items):
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
                f" The ranks' lengths differ ({text}), and all take as many steps as the longest "
                "has."
            )
        warnings.warn(
            f"accelerate(): {what} differs from rank to rank, and so counts as divided among them "
            f"already: each rank takes all of its own.{uneven} config.loader.shard = 'always' "
            "divides it, 'never' leaves it without this line.",
            stacklevel=2,
        )


class ShardedStream(IterableDataset[Any]):
    """Every `world_size`-th item that the stream `base` yields, from `rank` on.

    The stream is cut in rounds of `world_size` items. A last round that is not full is left out on
    every rank, so that all ranks take the same number of steps. With several data-loading workers,
    each worker of each rank reads the stream that `base` gives that worker, as in a run of one
    process. So a data set that divides itself by `torch.utils.data.get_worker_info()` goes on doing
    so. `check` compares the ranks' first items in the first pass. `lengths` are the lengths that
    the ranks' streams report.
    """

    def __init__(
        self,
        base: Any,
        rank: int,
        world_size: int,
        *,
        check: bool = True,
        workers: int = 0,
        lengths: Sequence[int | None] = (),
    ) -> None:
        self.base, self.rank, self.world_size = base, rank, world_size
        self.what = f"the stream ({type(base).__name__})"
        self.lengths = lengths
        self.divide, self.undecided = True, check
        # A worker writes its note here, which is visible before the worker's first batch comes.
        self.notes = torch.zeros(
            max(1, workers), 1 + len(digest(None)), dtype=torch.uint8
        ).share_memory_()

    def __getattr__(self, name: str) -> Any:
        if name == "base":  # not set yet while a worker unpickles this object
            raise AttributeError(name)
        return getattr(self.base, name)

    def __len__(self) -> int:
        return len(self.base) // self.world_size if self.divide else len(self.base)

    @property
    def used(self) -> bool:
        """Return whether the stream was read, here or in a worker."""
        return bool(self.notes[:, 0].any())

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        note = self.notes[worker.id if worker else 0]
        try:
            stream = iter(self.base)
            round_of_items = list(itertools.islice(stream, self.world_size))
        except Exception:
            note[0] = _FAILED
            if self.undecided and worker is None:
                self._compare(_NONE_READ)
            raise
        _write(note, round_of_items, with_digest=self.undecided)
        if self.undecided and worker is None:
            self.decide()
        if not self.divide:
            yield from round_of_items
            yield from stream
            return
        while len(round_of_items) == self.world_size:
            yield round_of_items[self.rank]
            round_of_items = list(itertools.islice(stream, self.world_size))

    def decide(self) -> None:
        """Compare the ranks' notes; afterwards `divide` holds for all passes.

        Raises:
            InputError: as `divides_itself` does.
        """
        self._compare(_first_note(self.notes) if self.used else _NONE_READ)

    def _compare(self, own: Note) -> None:
        notes = process_group.all_ranks(own)
        if own[1] != _FAILED:  # otherwise this rank's own error says more
            self.divide = not divides_itself(notes, self.what)
            if self.divide and len(set(self.lengths)) > 1:
                raise InputError(
                    f"{self.what} begins alike on all ranks, and differs in length "
                    f"({', '.join(map(str, self.lengths))}). Give all ranks the same, or each its "
                    "own share and config.loader.shard = 'never'.",
                    parameter="loader",
                )
            self.undecided = False
        if not self.divide:
            announce_own_division(self.what, self.lengths)


def _write(note: Tensor, items: list[Any], *, with_digest: bool) -> None:
    if items and with_digest:
        note[1:] = torch.frombuffer(bytearray(digest(items)), dtype=torch.uint8)
    note[0] = _ITEMS if items else _EMPTY


def _first_note(notes: Tensor) -> Note:
    """Return this rank's first note of items or of an error, otherwise a note of no items."""
    until = time.monotonic() + _LONGEST_WAIT_SECONDS
    for worker, note in enumerate(notes):
        while note[0] == _NOTHING_YET and time.monotonic() < until:
            time.sleep(0.001)
        state = int(note[0])
        if state in (_ITEMS, _FAILED):
            return worker, state, bytes(note[1:].numpy())
    return 0, _EMPTY, b""
