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
        self._clock = clock

    def batches(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """Those of a DataLoader's iterator. Of one without processes of its own they are just handed on."""
        processes = [worker.pid for worker in getattr(iterator, "_workers", ())]
        if not processes or self.given_back:
            yield from iterator
            return
        self._renice(processes, self.niceness)
        began = waited = ran = 0.0
        asked = self._clock()
        for number, batch in enumerate(iterator):
            now = self._clock()
            if number % LOOK_AFTER:
                waited += now - asked
            else:  # the first batch's wait is the processes' start
                running = self._seconds_run(processes)
                if number and not self.given_back:
                    self._look(processes, now - began, waited, running - ran)
                began, waited, ran = now, 0.0, running
            yield batch
            asked = self._clock()

    def _look(self, processes: list[int], seconds: float, waited: float, ran: float) -> None:
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
                os.setpriority(os.PRIO_PROCESS, process, max(niceness, os.getpriority(os.PRIO_PROCESS, 0)))
        except ProcessLookupError:  # ended; the loader says so
            return True
        except PermissionError:
            return False
        return True

    @staticmethod
    def _seconds_run(processes: list[int]) -> float:
        total = 0.0
        for process in processes:
            try:
                used = psutil.Process(process).cpu_times()
            except psutil.Error:  # ended
                continue
            total += used.user + used.system
        return total
