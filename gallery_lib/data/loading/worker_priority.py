"""Processes that load data, while the model is trained on the same cores: they take what its threads leave.

A step's threads wait for one another at the end of each operator, and each of torch's has a core. A loading process that takes half of one
thread's core makes all of them wait, at each operator: more than it takes. With the lowest priority it runs where the training waits: for
Python between operators, and for the next batch, when all cores are its own.

Where other programs keep the cores busy, the lowest priority may be no share at all. So time is watched, in passes of more batches than
LOOK_AFTER, and the priority given back.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import psutil

LOOK_AFTER = 16
"""Batches after which time is looked at, again and again."""
MOST_WAITING = 0.5
"""Share of the time that the training may wait for batches before it is asked why."""
LEAST_RUNNING = 0.5
"""Cores' worth of time that the loading processes should have had while it waited: with less, others had it, or a disk was waited for."""


class Background:
    """Lowers the priority of a loader's processes to `niceness`, and watches what comes of it."""

    def __init__(self, niceness: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.niceness, self.given_back = niceness, False
        self.clock = clock

    def batches(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """Return the batches of a DataLoader's iterator. One without processes of its own comes back as it is."""
        processes = [worker.pid for worker in getattr(iterator, "_workers", ())]
        if not processes or self.given_back:
            return iterator
        self._renice(processes, self.niceness)
        return _Watched(self, iterator, processes)

    def look(self, processes: list[int], seconds: float, waited: float, ran: float) -> None:
        """Give the priority back if the training waits, and not for what these processes could do sooner by themselves."""
        if waited <= MOST_WAITING * seconds or ran >= LEAST_RUNNING * waited:
            return
        self.given_back = True
        if not self._renice(processes, os.getpriority(os.PRIO_PROCESS, 0)):
            warnings.warn(
                f"{waited / seconds:.0%} of the time goes to waiting for batches, and the processes that load them had a core for only "
                f"{ran / seconds:.0%} of it. They have the lowest priority, which this user may not take back: if other programs keep the "
                "cores busy, set config.loader.nice = 0. If the storage is slow, it makes no difference.",
                stacklevel=2,
            )

    @staticmethod
    def _renice(processes: list[int], niceness: int) -> bool:
        """Whether all that live have at least that priority now. Priorities are lowered, never raised above this process's own."""
        try:
            for process in processes:
                os.setpriority(
                    os.PRIO_PROCESS, process, max(niceness, os.getpriority(os.PRIO_PROCESS, 0))
                )
        except ProcessLookupError:  # ended; the loader says so
            return True
        except PermissionError:
            return False
        return True

    @staticmethod
    def seconds_run(processes: list[int]) -> float:
        total = 0.0
        for process in processes:
            try:
                used = psutil.Process(process).cpu_times()
            except psutil.Error:  # ended
                continue
            total += used.user + used.system
        return total


class _Watched:
    """A loader's batches, during which time is looked at. An error does not end it, as it does not end the loader's iterator."""

    def __init__(
        self, background: Background, iterator: Iterator[Any], processes: list[int]
    ) -> None:
        self._background, self._iterator, self._processes = background, iterator, processes
        self._clock = background.clock
        self._number = 0
        self._began = self._waited = self._ran = 0.0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        asked = self._clock()
        batch = next(self._iterator)
        now = self._clock()
        if self._number % LOOK_AFTER:
            self._waited += now - asked
        else:  # the first batch's wait is the processes' start
            running = self._background.seconds_run(self._processes)
            if self._number and not self._background.given_back:
                self._background.look(
                    self._processes, now - self._began, self._waited, running - self._ran
                )
            self._began, self._waited, self._ran = now, 0.0, running
        self._number += 1
        return batch
