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

import atexit
import contextlib
import ctypes
import os
import threading
import time
from pathlib import Path

from gallery_lib.system.machine_load import threads_of
from gallery_lib.system.processes import tell

VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
PERIOD = 1.0
"""Seconds from one look at the threads to the next."""
_BUSY = 0.1
"""Seconds that threads wait for a core, all together, in a second of a busy machine."""
_WAKING = 50e-6
"""Seconds of waiting that do not count, each time that a thread gets a core: wake-ups take some."""
_IDLE = 0.1
"""Seconds on a core, all together, in a second, below which a look tells nothing."""
_MOST_CPUS = 128  # a region of more threads would be no small thing
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
        return "wait as their runtime does, which is not libgomp (Intel's: see KMP_BLOCKTIME)"
    if not sum(thread.ran for thread in threads_of(os.getpid()).values()):
        return "spin while they wait: this kernel does not say whether cores are shared"
    if found.omp_get_num_procs() > _MOST_CPUS:
        return f"spin while they wait: there are more than {_MOST_CPUS} CPUs"
    _watch = _Watch(found)
    return _watch.note


def stop() -> None:
    """End the watch, with threads waiting as they did before it."""
    global _watch
    ended, _watch = _watch, None
    if ended is not None:
        ended.end()


def is_on() -> bool:
    """Return whether this process is watched."""
    return _watch is not None


def asleep() -> bool:
    """Return whether threads of this process wait asleep now, by the watch."""
    return _watch is not None and _watch.asleep


def _libgomp() -> ctypes.CDLL | None:
    """Return torch's libgomp, where it is that library which runs torch's threads."""
    with contextlib.suppress(OSError):
        maps = Path("/proc/self/maps").read_text().splitlines()
        paths = {fields[5] for line in maps if len(fields := line.split(maxsplit=5)) > 5}
        if any(name in Path(path).name for path in paths for name in ("libiomp", "libomp")):
            return None  # it takes libgomp's calls over
        names = sorted(path for path in paths if "libgomp" in Path(path).name)
        torchs = [path for path in names if "/torch/lib/" in path or "/torch.libs/" in path]
        for path in torchs or names:
            return ctypes.CDLL(path)
    return None


class Choice:
    """Whether threads wait asleep, look by look."""

    def __init__(self) -> None:
        self.asleep = False
        self._quiet, self._patience, self._tried = 0, _LEAST_PATIENCE, False

    def look(self, busy: bool) -> bool:
        """Take what was seen since the last look, and return whether to sleep.

        A machine may look quiet only because threads sleep. So spinning is tried after some quiet
        looks, and later each time that it fails.
        """
        self._quiet = 0 if busy else self._quiet + 1
        if busy and not self.asleep:
            self.asleep = True
            if self._tried:
                self._patience = min(2 * self._patience, _MOST_PATIENCE)
        elif self.asleep and self._quiet >= self._patience:
            self.asleep, self._quiet, self._tried = False, 0, True
        elif self._quiet >= _MOST_PATIENCE:
            self._patience, self._tried = _LEAST_PATIENCE, False
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
        self._library.omp_set_dynamic(0)  # of this thread: a region has all its threads
        choice, pid = Choice(), os.getpid()
        # What cannot be read, or printed, ends the watch: a training goes on.
        with contextlib.suppress(OSError, ValueError):
            before, then = threads_of(pid), time.monotonic()
            while not self._ended.wait(PERIOD):
                after, now = threads_of(pid), time.monotonic()
                ran = waited = 0.0
                for number in before.keys() & after.keys():
                    old, new = before[number], after[number]
                    ran += new.ran - old.ran
                    waking = _WAKING * (new.times - old.times)
                    waited += max(0.0, new.waited - old.waited - waking)
                # A process that was stopped meanwhile neither ran nor waited.
                seconds = min(now - then, 2 * PERIOD)
                if ran > _IDLE * seconds:
                    self._switch(choice.look(waited > _BUSY * seconds))
                before, then = after, now
        self._switch(False)

    def _switch(self, asleep: bool) -> None:
        library = self._library
        threads = library.omp_get_num_procs() + 1
        if asleep == self.asleep or (asleep and not _has_room_for(threads)):
            return
        if asleep:
            # Any function that takes nothing and does nothing is the region's body.
            body = ctypes.cast(library.omp_get_thread_num, ctypes.c_void_p)
            library.GOMP_parallel(body, None, ctypes.c_uint(threads), ctypes.c_uint(0))
        else:
            library.omp_pause_resource(_SOFT, library.omp_get_initial_device())
        self.asleep = asleep
        if asleep and not self._said and os.environ.get("LOCAL_RANK", "0") == "0":
            self._said = True
            tell(
                "Threads of this process wait for cores that others use, or for its quota: they "
                "sleep while they wait for each other, as long as that is so (OMP_WAIT_POLICY, "
                "where set, decides instead)."
            )


def _has_room_for(threads: int) -> bool:
    """Return whether so many threads may be started: libgomp ends a process that may not."""
    done, started = threading.Event(), []
    try:
        for _ in range(threads):
            one = threading.Thread(target=done.wait, daemon=True)
            one.start()
            started.append(one)
    except RuntimeError:
        return False
    finally:
        done.set()
        for one in started:
            one.join()
    return True


def _forget() -> None:
    """Leave the watch to the parent after a fork; threads do not come along."""
    global _watch
    _watch = None


os.register_at_fork(after_in_child=_forget)
atexit.register(stop)
