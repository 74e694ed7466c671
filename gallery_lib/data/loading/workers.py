"""Processes that load data: they give way to the training, and a wait for them ends.

**Priority.** The model is trained on the same cores. A step's threads wait for one another at the
end of each operator, so a loading process that takes half of one thread's core makes all threads
wait. With the lowest priority it runs where the training waits: for Python between operators, and
for the next batch. Where other programs keep the cores busy, the lowest priority may be no share at
all. So passes of more than LOOK_AFTER batches are timed, and the priority is given back if needed.

**Waiting.** A batch may be lost: multiprocessing prints why a process could not hand it over, and
goes on. `begin` has the error sent in its place. A process may have been stopped, or wait for a
network disk that hangs. Time alone does not tell, since a batch may take long. While one is made,
this process or one below it uses a core, or waits for one. `LoaderWatch` looks at that.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.queues import Queue
from typing import Any

import psutil
from torch._utils import ExceptionWrapper

from gallery_lib.system.processes import die_with_parent

LOOK_AFTER = 16
"""Number of batches between two looks at the time."""
MOST_WAITING = 0.5
"""Share of the time that the training may wait for batches before the cause is examined."""
LEAST_RUNNING = 0.5
"""Cores' worth of time that loading should have had meanwhile: with less, others had the cores."""
_LOOKS = 16
"""Number of looks within the limit; the standstill is said after a quarter of them."""
_LEAST_SECONDS = 0.015
"""Processor time between two looks that counts as work. Waiting processes use less than 1 ms."""
_PAUSE_SECONDS = 3.0
"""Longest delay of a look; a longer one means that this process was stopped itself."""
_WORDS = {psutil.STATUS_STOPPED: "is stopped", psutil.STATUS_DISK_SLEEP: "waits for a disk"}


class Background:
    """Priority of a loader's processes: lowered to `niceness`, and watched for its effect.

    With a niceness of 0 they are left alone.
    """

    def __init__(self, niceness: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.niceness, self.given_back, self.clock = niceness, False, clock

    def batches(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """Return the batches of a DataLoader's iterator, its processes, if any, at low priority."""
        processes = [worker.pid for worker in getattr(iterator, "_workers", ())]
        if not processes or not self.niceness or self.given_back:
            return iterator
        _renice(processes, self.niceness)
        return _Watched(self, iterator, processes)

    def look(self, processes: list[int], seconds: float, waited: float, ran: float) -> None:
        """Give the priority back if the training waits and the processes get little CPU time.

        Of `seconds`, `waited` were spent waiting for batches; the processes `ran` for that many
        seconds of CPU time. Warns if this user may not take the priority back.
        """
        if self.given_back or waited <= MOST_WAITING * seconds or ran >= LEAST_RUNNING * waited:
            return
        self.given_back = True
        if not _renice(processes, os.getpriority(os.PRIO_PROCESS, 0)):
            warnings.warn(
                f"{waited / seconds:.0%} of the time goes to waiting for batches, and the "
                f"processes that load them had a core for only {ran / seconds:.0%} of it. They "
                "have the lowest priority, which this user may not take back: if other programs "
                "keep the cores busy, set config.loader.nice = 0. If the storage is slow, it "
                "makes no difference.",
                stacklevel=2,
            )


def _renice(processes: list[int], niceness: int) -> bool:
    try:
        for process in processes:
            own = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, process, max(niceness, own))
    except ProcessLookupError:  # ended; the loader says so
        return True
    except PermissionError:
        return False
    return True


def seconds_run(processes: list[int]) -> float:
    """Return the CPU seconds, user and system, that the living `processes` have used."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error):  # ended
            used = psutil.Process(process).cpu_times()
            total += used.user + used.system
    return total


class _Watched:
    """Batches of a loader, timed as they are taken. An error does not end this iterator."""

    def __init__(
        self, background: Background, iterator: Iterator[Any], processes: list[int]
    ) -> None:
        self._background, self._iterator, self._processes = background, iterator, processes
        self._number = 0
        self._began = self._waited = self._ran = 0.0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        start = self._background.clock()
        batch = next(self._iterator)
        now = self._background.clock()
        if self._number % LOOK_AFTER:
            self._waited += now - start
        else:  # waiting for the first batch is the start of the processes
            ran = seconds_run(self._processes)
            if self._number:
                self._background.look(
                    self._processes, now - self._began, self._waited, ran - self._ran
                )
            self._began, self._waited, self._ran = now, 0.0, ran
        self._number += 1
        return batch


def begin(worker: int) -> None:
    """Prepare a loading process; for use as a DataLoader's `worker_init_fn`.

    It dies with its parent: one that goes on would hide from torchrun that its rank has died.
    """
    die_with_parent()
    Queue._on_queue_feeder_error = _send_error  # type: ignore[attr-defined]
    sys.excepthook = _end_without_files


def _send_error(queue: Any, error: Exception, batch: Any) -> None:
    number, _ = batch
    raised = (type(error), error, error.__traceback__)
    queue.put((number, ExceptionWrapper(raised, where="in a process that hands over a batch")))


def _end_without_files(kind: Any, error: BaseException, frames: Any) -> None:
    # The thread that hands over files would try forever, while the training waits for its answer.
    sys.__excepthook__(kind, error, frames)
    if isinstance(error, OSError) and error.errno == errno.EMFILE:
        os._exit(errno.EMFILE)


class LoaderWatch:
    """Watch over the time in which a rank waits for batches, in a thread until `stop`.

    `say` gets a line, once. After a standstill of `limit_seconds`, `end` gets the reason and the
    processes below this one.
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
    states = {}
    for process in (me := psutil.Process(), *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # it has ended
            states[process.pid] = process.status()
    return states


def _standstill(seconds: float, rank: int) -> str:
    named = [f"process {pid} {_WORDS[it]}" for pid, it in _states().items() if it in _WORDS]
    why = ", ".join(named[:3]) or "no process works on one"
    return f"no batch for {seconds:.0f} s: the loader of rank {rank} stands still ({why})"
