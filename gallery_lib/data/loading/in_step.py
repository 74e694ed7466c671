"""Keep ranks in step that have divided the data themselves, where a training steps batch by batch.

No rank knows how many batches the others have. If one ran out first in a training, the others would
wait for it without end in the next averaging of gradients. So each rank reads one batch ahead, and
puts a note into the run's store before it hands out its last batch. A rank that has run out then
looks for the notes of the others. Once the gradients of the last batch are averaged, the other
ranks have had that batch, too: who has put down no note by then has more. The rank repeats its
first batch as long as there is such a rank, and warns.

Nobody waits here, and no note is read where the loop averages nothing between two batches: in a
validation, under `no_sync`, in a thread that fetches ahead. There a rank ends with its own batches,
as in plain PyTorch.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from gallery_lib.comm import averages, process_group
from gallery_lib.data.loading.nesting import own_copy


class InStep:
    """Batches of one pass. `name` is that of the loader, the same on all ranks.

    With `refills`, a batch may be overwritten when the next one is read.
    """

    def __init__(self, batches: Iterator[Any], name: str, refills: bool) -> None:
        self._batches = batches
        self._refills = refills
        self._key = f"gallery-last-batch/{name}/{averages.count()}"
        self._number = 0  # of batches handed out
        self._averages = averages.count()
        self._steps = True  # gradients were averaged after each batch
        self._first: Any = None
        self._next: tuple[Any, Exception | None] | None = None
        self._said = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._number:
            self._steps = self._steps and averages.count() > self._averages
        self._steps = self._steps and not averages.trained_elsewhere()
        self._averages = averages.count()
        (batch, error), self._next = self._next or self._fetched(), None
        if isinstance(error, StopIteration):
            return self._repeated()
        if error is not None:
            raise error
        if self._steps:
            batch = own_copy(batch) if self._refills else batch
            if self._number == 0:
                self._first = own_copy(batch)  # a loop may change its batches in place
            self._next = self._fetched()
            if isinstance(self._next[1], StopIteration):
                self._note()
        self._number += 1
        return batch

    def _fetched(self) -> tuple[Any, Exception | None]:
        """Return the next batch, or the error that came in its place; StopIteration at the end."""
        try:
            return next(self._batches), None
        except Exception as error:
            return None, error

    def _repeated(self) -> Any:
        """Return the first batch again if another rank has more in this training."""
        self._next = (None, StopIteration())
        if not self._number or not self._steps or not self._others_go_on():
            raise StopIteration
        if not self._said:
            warnings.warn(
                f"accelerate(): rank {process_group.rank()} has run out of batches after "
                f"{self._number}, and repeats its first while others have some. Shares of the "
                "same length need none of this.",
                stacklevel=3,
            )
        self._said = True
        self._number += 1
        return own_copy(self._first)

    def _note(self) -> None:
        with contextlib.suppress(RuntimeError):  # the run's store has gone, and with it the others
            _store().set(f"{self._key}/{process_group.rank()}", str(self._number + 1))

    def _others_go_on(self) -> bool:
        """Return whether a rank has a batch after the last one, which all ranks have had."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # gradients are averaged then, not only on their way
        keys = [f"{self._key}/{rank}" for rank in range(process_group.world_size())]
        try:
            return any(
                not _store().check([key]) or int(_store().get(key)) > self._number for key in keys
            )
        except RuntimeError:
            return False


def _store() -> dist.Store:
    return dist.distributed_c10d._get_default_store()
