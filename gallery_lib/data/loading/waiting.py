"""End waits for batches that would last forever, and say why.

A batch may be lost: multiprocessing prints why a loading process could not hand it over, and the
process goes on. `begin` has the error sent in its place.

A loading process may have been stopped, or wait for a network disk that hangs. Time alone does not
tell, since a batch may take long. While one is made, this process or one below it uses a core, or
waits for one. `LoaderWatch` looks at that.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.queues import Queue
from typing import Any

import psutil
from torch._utils import ExceptionWrapper

from gallery_lib.data.loading.worker_priority import seconds_run
from gallery_lib.system.processes import die_with_parent

_LOOKS = 16
"""Number of looks within the limit; the standstill is said after a quarter of them."""
_LEAST_SECONDS = 0.015
"""Processor time between two looks that counts as work. Waiting processes use less than 1 ms."""
_PAUSE_SECONDS = 3.0
"""Longest delay of a look; a longer one means that this process was stopped itself."""
_WORDS = {psutil.STATUS_STOPPED: "is stopped", psutil.STATUS_DISK_SLEEP: "waits for a disk"}


def begin(worker: int) -> None:
    """Prepare a loading process; for use as a DataLoader's `worker_init_fn`.

    It dies with its parent: one that goes on would hide from torchrun that its rank has died.
    """
    die_with_parent()
    Queue._on_queue_feeder_error = _send_error  # type: ignore[attr-defined]
    sys.excepthook = _end_without_files


def _send_error(queue: Any, error: Exception, batch: Any) -> None:
    """Send the error in place of a batch that cannot be pickled."""
    number, _ = batch
    raised = (type(error), error, error.__traceback__)
    queue.put((number, ExceptionWrapper(raised, where="in a process that hands over a batch")))


def _end_without_files(kind: Any, error: BaseException, frames: Any) -> None:
    """End this process where its thread that hands over files can open no more.

    The thread would try forever, while the training waits for its answer. The exit code tells why.
    """
    sys.__excepthook__(kind, error, frames)
    if isinstance(error, OSError) and error.errno == errno.EMFILE:
        os._exit(errno.EMFILE)


class LoaderWatch:
    """Watch over the time in which a rank waits for batches, in a thread until `stop`.

    Args:
        limit_seconds: the longest standstill.
        rank: the rank, for messages.
        say: gets a line, once.
        end: gets the reason and the processes below this one when the limit is over.
    """

    def __init__(
        self,
        limit_seconds: float,
        rank: int,
        say: Callable[[str], object],
        end: Callable[[str, list[int]], object],
    ) -> None:
        self._limit, self._rank, self._say, self._end = limit_seconds, rank, say, end
        self._batch, self._waits = 0, False
        self._before = (0, 0.0)
        self._stopped = threading.Event()
        self.stop = self._stopped.set
        threading.Thread(target=self._watch, daemon=True).start()

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of a loader, and watch the wait for each."""
        iterator = iter(loader)
        while True:
            self._batch, self._waits = self._batch + 1, True
            try:
                batch = next(iterator)
            except StopIteration:
                return
            finally:
                self._waits = False
            yield batch

    def _watch(self) -> None:
        interval, said = self._limit / _LOOKS, False
        began = looked = time.monotonic()
        while not self._stopped.wait(interval):
            late = time.monotonic() - looked > interval + _PAUSE_SECONDS
            looked = time.monotonic()
            still = looked - began
            if self._works() or late:
                began = looked
            elif still > self._limit:
                allowed = f"{self._limit:g} s are allowed (rank_timeout)"
                self._end(f"{_standstill(still, self._rank)}; {allowed}", list(_states())[1:])
                return
            elif still > self._limit / 4 and not said:
                said = True
                limit = f"the run ends after {self._limit:g} s of that (rank_timeout)"
                self._say(f"{_standstill(still, self._rank)}; {limit}")

    def _works(self) -> bool:
        """Return whether a batch has come since the last look, or some process works on one."""
        if not self._waits:
            return True
        states = _states()
        used = time.process_time() - time.thread_time() + seconds_run(list(states)[1:])
        (batch, before), self._before = self._before, (self._batch, used)
        return (
            batch != self._batch
            or used - before > _LEAST_SECONDS
            or psutil.STATUS_RUNNING in states.values()
        )


def _states() -> dict[int, str]:
    """Return the state of this process, first, and of those below it."""
    states = {}
    for process in (me := psutil.Process(), *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # it has ended
            states[process.pid] = process.status()
    return states


def _standstill(seconds: float, rank: int) -> str:
    named = [f"process {pid} {_WORDS[it]}" for pid, it in _states().items() if it in _WORDS]
    why = ", ".join(named[:3]) or "no process works on one"
    return f"no batch for {seconds:.0f} s: the loader of rank {rank} stands still ({why})"
