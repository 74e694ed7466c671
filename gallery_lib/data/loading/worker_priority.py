"""Lower the priority of loading processes, so that they take what the training threads leave.

The model is trained on the same cores. A step's threads wait for one another at the end of each
operator, and each of torch's threads has a core. A loading process that takes half of one thread's
core makes all threads wait, at each operator. That costs more than the loading process takes. With
the lowest priority it runs where the training waits: for Python between operators, and for the next
batch, when all cores are its own.

Where other programs keep the cores busy, the lowest priority may be no share at all. So passes of
more batches than LOOK_AFTER are timed, and the priority is given back if needed.
"""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import psutil

LOOK_AFTER = 16
"""Number of batches between two looks at the time."""
MOST_WAITING = 0.5
"""Share of the time that the training may wait for batches before the cause is examined."""
LEAST_RUNNING = 0.5
"""Cores' worth of time that the loading processes should have had while the training waited.

With less, other programs had the cores, or the processes waited for a disk.
"""


class Background:
    """Priority of a loader's processes: lowered to `niceness`, and watched for its effect.

    With a niceness of 0 they are left alone.
    """

    def __init__(self, niceness: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.niceness, self.given_back = niceness, False
        self.clock = clock

    def batches(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """Return the batches of a DataLoader's iterator, loaded at low priority.

        An iterator without processes of its own comes back as it is.
        """
        processes = [worker.pid for worker in getattr(iterator, "_workers", ())]
        if not processes or not self.niceness or self.given_back:
            return iterator
        _renice(processes, self.niceness)
        return _Watched(self, iterator, processes)

    def look(self, processes: list[int], seconds: float, waited: float, ran: float) -> None:
        """Give the priority back if the training waits and the processes get little CPU time.

        `seconds` have passed, `waited` of them were spent waiting for batches, and the processes
        `ran` for that many seconds of CPU time. The priority stays if these processes could not be
        sooner by themselves. Warns if this user may not take the priority back.
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
    """Set the niceness of processes, not below this one's; return whether this user may do it."""
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
    """Batches of a loader, timed as they are taken.

    An error does not end this iterator, as it does not end the loader's iterator.
    """

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
