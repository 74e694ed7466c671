"""Processes that load data: they give way to the training, and a lost batch is an error.

**Priority.** The model is trained on the same cores. A step's threads wait for one another at the
end of each operator, so a loading process that takes half of one thread's core makes all threads
wait. With the lowest priority it runs where the training waits: for Python between operators, and
for the next batch. Where other programs keep the cores busy, that may be no share at all.

**Lost batches.** Multiprocessing prints why a process could not hand a batch over, and goes on.
`begin` has the error sent in its place.

**Late batches.** DataLoader's own `timeout` waits for a batch in the queue. Its tensors are fetched
from the loading process afterwards, without a limit: one that is stopped has the training wait for
ever. `watched` has a limit for all of it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.queues import Queue
from typing import Any

from torch._utils import ExceptionWrapper

from gallery_lib.system.files import PrivateFolder
from gallery_lib.system.processes import SOCKETS_VARIABLE, die_with_parent


def shorten_paths() -> None:
    """Have this process and its loading processes hand over batches in a folder with a short path.

    multiprocessing takes a folder in TMPDIR for each loading process, and leaves it there when that
    is killed. This one is the run's, or else this process's own until its end.
    """
    from multiprocessing import process, util

    config = process.current_process()._config  # type: ignore[attr-defined]
    if config.get("tempdir") is None:
        if (folder := os.environ.get(SOCKETS_VARIABLE)) is None:
            own = PrivateFolder()
            util.Finalize(None, own.close, exitpriority=-100)  # when loading processes have ended
            folder = str(own.path)
        config["tempdir"] = folder


_LOOKS = 8  # within the limit
_STOPPED_SECONDS = 3.0


def watched(batches: Iterable[Any], seconds: float, late: Callable[[str], None]) -> Iterator[Any]:
    """Yield the batches; where one takes longer than `seconds`, call `late` in a thread.

    Time in which this process itself was stopped does not count.
    """
    waits_since: list[float] = []
    ended = threading.Event()

    def look() -> None:
        interval = min(1.0, seconds / _LOOKS)
        looked = resumed = time.monotonic()
        while not ended.wait(interval):
            now = time.monotonic()
            if now - looked > interval + _STOPPED_SECONDS:
                resumed = now
            looked = now
            if any(now - max(since, resumed) > seconds for since in waits_since[:]):
                late(
                    f"no batch has come for {seconds:g} s (rank_timeout): a process that loads "
                    "data stands still, or the disk that it reads from"
                )
                return

    threading.Thread(target=look, daemon=True).start()
    try:
        waits_since[:] = [time.monotonic()]
        for batch in batches:
            waits_since.clear()
            yield batch
            waits_since[:] = [time.monotonic()]
    finally:
        ended.set()


def give_way(iterator: Iterator[Any], niceness: int) -> None:
    """Lower the priority of the processes of a DataLoader's iterator, if any, to `niceness`."""
    lowest = max(niceness, os.getpriority(os.PRIO_PROCESS, 0))
    for worker in getattr(iterator, "_workers", ()):
        with contextlib.suppress(ProcessLookupError):  # ended; the loader says so
            os.setpriority(os.PRIO_PROCESS, worker.pid, lowest)


def begin(worker: int) -> None:
    """Prepare a loading process; for use as a DataLoader's `worker_init_fn`.

    It dies with its parent: one that goes on would hide from torchrun that its rank has died.
    """
    die_with_parent()
    Queue._on_queue_feeder_error = _send_error  # type: ignore[attr-defined]


def _send_error(queue: Any, error: Exception, batch: Any) -> None:
    number, _ = batch
    raised = (type(error), error, error.__traceback__)
    queue.put((number, ExceptionWrapper(raised, where="in a process that hands over a batch")))
