"""OpenMP threads that sleep while they wait, as long as other work wants their cores.

libgomp, which torch's Linux wheels bring, lets threads spin while they wait for each other. That is
right where a training has its cores for itself. Where it shares them, spinning takes the cores from
those with work to do, and a step takes several times as long. No setting is right for both.

libgomp spins only briefly while it manages more threads than there are CPUs. So a thread of ours
opens a parallel region of that many, which then sleep: from there on threads wait asleep in the
whole process, and as they did before when the region's threads are given back. Teams and the shares
of their threads stay as they are, so results have the same bits.

`watch()` switches by what the kernel says of this process: the time that its threads, ready to run,
waited for a core. `OMP_WAIT_POLICY` and `GOMP_SPINCOUNT`, where set, are the user's choice.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from pathlib import Path

from gallery_lib.system.processes import tell

VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
PERIOD = 1.0
"""Seconds from one look at the threads to the next."""
_BUSY = 0.1
"""Seconds that threads wait for a core, all together, in a second of a busy machine."""
_LEAST_PATIENCE, _MOST_PATIENCE = 3, 60
"""Quiet looks before spinning is tried again; each try that fails doubles them."""
_SOFT = 1  # omp_pause_soft

_watch: _Watch | None = None


def watch() -> str:
    """Watch this process from now on, once; return a line on what that means here."""
    global _watch
    if _watch is not None:
        return _watch.note
    if chosen := [name for name in VARIABLES if name in os.environ]:
        return f"wait as {chosen[0]} says"
    found = _libgomp()
    if found is None:
        return (
            "wait as their runtime does: it is not libgomp (of Intel's, KMP_BLOCKTIME=0 is asleep)"
        )
    if not Path("/proc/self/schedstat").exists():
        return "spin while they wait: this kernel does not say whether cores are shared"
    _watch = _Watch(found)
    return _watch.note


def stop() -> None:
    """End the watch, with threads waiting as they did before it."""
    global _watch
    if _watch is not None:
        _watch.end()
        _watch = None


def asleep() -> bool:
    """Return whether threads of this process wait asleep now, by the watch."""
    return _watch is not None and _watch.asleep


def _libgomp() -> ctypes.CDLL | None:
    """Return torch's libgomp, where it is that library which runs torch's threads."""
    with contextlib.suppress(OSError):
        maps = Path("/proc/self/maps").read_text().splitlines()
        paths = {line.split()[-1] for line in maps if "libgomp" in line}
        if any("libiomp" in line for line in maps):  # takes libgomp's calls over
            return None
        for path in sorted(paths, key=lambda path: "torch" not in path):
            return ctypes.CDLL(path)
    return None


class Choice:
    """Whether threads wait asleep, look by look."""

    def __init__(self) -> None:
        self.asleep = False
        self._quiet, self._patience = 0, _LEAST_PATIENCE

    def look(self, busy: bool) -> bool:
        """Take what was seen since the last look, and return whether to sleep.

        A machine may look quiet only because threads sleep. So spinning is tried after some quiet
        looks, and later each time that it fails.
        """
        self._quiet = 0 if busy else self._quiet + 1
        if busy and not self.asleep:
            self.asleep = True
            self._patience = min(2 * self._patience, _MOST_PATIENCE)
        elif self.asleep and self._quiet >= self._patience:
            self.asleep, self._quiet = False, 0
        elif self._quiet >= _MOST_PATIENCE:
            self._patience = _LEAST_PATIENCE
        return self.asleep


class _Watch:
    """The thread that looks at this process, and switches."""

    note = "sleep while they wait, when other work wants their cores"

    def __init__(self, library: ctypes.CDLL) -> None:
        self.asleep = False
        self._library, self._ended, self._said = library, threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="gallery-spinning", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        choice, before, then = Choice(), _waits(), time.monotonic()
        while not self._ended.wait(PERIOD):
            after, now = _waits(), time.monotonic()
            waited = sum(after[task] - before[task] for task in before.keys() & after.keys())
            self._switch(choice.look(waited > _BUSY * (now - then)))
            before, then = after, now
        self._switch(False)

    def _switch(self, asleep: bool) -> None:
        if asleep == self.asleep:
            return
        library = self._library
        if asleep:
            # Any function that takes nothing and does nothing is the region's body.
            body = ctypes.cast(library.omp_get_thread_num, ctypes.c_void_p)
            threads = library.omp_get_num_procs() + 1
            library.GOMP_parallel(body, None, ctypes.c_uint(threads), ctypes.c_uint(0))
        else:
            library.omp_pause_resource(_SOFT, library.omp_get_initial_device())
        self.asleep = asleep
        if asleep and not self._said:
            self._said = True
            tell(
                "Other work wants the cores of this process: its threads sleep while they wait, "
                "as long as that is so. OMP_WAIT_POLICY, where set, decides instead."
            )


def _waits() -> dict[str, float]:
    """Return the seconds that each thread, ready to run, has waited for a core."""
    waits = {}
    for task in os.scandir("/proc/self/task"):
        with contextlib.suppress(OSError):  # ended
            waits[task.name] = int(Path(task.path, "schedstat").read_text().split()[1]) / 1e9
    return waits


def _forget() -> None:
    """Leave the watch to the parent after a fork; threads do not come along."""
    global _watch
    _watch = None


os.register_at_fork(after_in_child=_forget)
