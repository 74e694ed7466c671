"""Load of the machine while steps were measured, so that figures of a busy one say so.

Who measures looks before the first measured step and between measured steps, so that a look takes
no time from one. Compared are the first look and the last: how long the threads of the measured
processes waited for a core, whether other processes had one meanwhile, and CPU time that the
hypervisor gave to other machines (steal). A busy machine widens a speed-up's interval and spoils
every figure in seconds. Threads that wait for each other alone do so on a quiet machine as well.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import psutil

from gallery_lib.system import gpu

# Limits of a quiet machine. Of the time with work to do, threads wait for a core (a loader costs
# some per cent); of the CPU time, the hypervisor gives to other machines, and other processes take.
WAITED, STOLEN, OTHERS = 0.1, 0.02, 0.02
BUSY_SPREAD = 0.05
"""Relative standard deviation of a ratio over restarts on a busy machine.

Beside other work one process keeps a better place than its twin for as long as both live
(benchmarks/notes/process-spread.md).
"""


@dataclass(frozen=True)
class MachineLoad:
    """Load that was seen while steps were measured. None: this system does not say."""

    stolen: float | None  # part of the CPU time
    # Part of the time with work to do that the measured threads waited for a core.
    waited: float | None = None
    # CPU time of processes beside the measured ones, as a part of the measured ones' cores. It errs
    # upwards, since the others may have run on other cores.
    others: float | None = None
    gpu_processes: int | None = None  # most that used a GPU beside the measured ones, at a pause

    @property
    def _long_waits(self) -> bool:
        return self.waited is not None and self.waited > WAITED

    def reasons(self) -> list[str]:
        """Return what speaks against a quiet machine, a phrase each; nothing for a quiet one."""
        reasons: list[str] = []
        if self._long_waits and (self.others is None or self.others > OTHERS):
            reasons = [f"threads with work to do waited for a core {self.waited:.0%} of the time"]
        if self.stolen is not None and self.stolen > STOLEN:
            reasons += [f"the hypervisor gave {self.stolen:.0%} of the CPU time to other machines"]
        if self.gpu_processes:
            reasons += [f"{self.gpu_processes} other process(es) used the GPU"]
        return reasons

    @property
    def spread(self) -> float:
        """Return what this load adds to the spread of a ratio over restarts."""
        return BUSY_SPREAD if self.reasons() else 0.0

    def sentence(self) -> str:
        """Return what made steps longer, and what to do; '' where nothing did."""
        if reasons := self.reasons():
            return (
                f"The machine was busy: {'; '.join(reasons)}; times are longer than the machine's "
                "own. Repeat it when nothing else runs (`top`), or with fewer --workers or "
                "--threads."
            )
        if self._long_waits:
            return (
                f"Threads waited for each other's cores {self.waited:.0%} of the time: "
                "fewer --workers or --threads leave a core to each."
            )
        return ""


@dataclass(frozen=True)
class Look:
    """The counters at one moment; times in CPU seconds since their beginning."""

    stolen: float
    total: float
    busy: float  # of all processes of the machine
    own: float  # of the measured ones
    threads: dict[int, ThreadTimes]  # of the measured processes
    cores: float = 1.0  # part of the machine's cores that the measured processes may use


class ThreadTimes(NamedTuple):
    """Seconds of a thread on a core and of waiting for one, and how often it got one."""

    ran: float
    waited: float
    times: int


def threads_of(pid: int) -> dict[int, ThreadTimes]:
    """Return the threads of a process, as far as the kernel counts; OSError where there is none."""
    threads = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError, ValueError):  # ended, or not counted
            ran, waited, times = map(int, (task / "schedstat").read_text().split())
            threads[int(task.name)] = ThreadTimes(ran / 1e9, waited / 1e9, times)
    return threads


def look(root: int | None = None) -> Look:
    """Read the counters of the machine, and of `root` (None: this process) with all below it.

    The threads are those that compete for a core: a process of a lower priority than this one's, a
    loader's say, waits on purpose. A look takes some milliseconds. What cannot be read counts as
    none: a measurement does not fail.
    """
    threads: dict[int, ThreadTimes] = {}
    own, niceness = 0.0, os.nice(0)
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(root)
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error, OSError, ValueError):  # ended, or not counted
                own += sum(one.cpu_times()[:4])  # with children that have ended
                if one.nice() > niceness:
                    continue
                threads |= threads_of(one.pid)
    with contextlib.suppress(OSError, RuntimeError, ValueError):  # no /proc/stat, or cut short
        times = psutil.cpu_times()
        busy = times.user + times.nice + times.system
        total = sum(times) - times.guest - times.guest_nice
        allowed = os.sched_getaffinity(root or 0)
        cores = min(1.0, len(allowed) / len(psutil.cpu_times(percpu=True)))
        return Look(times.steal, total, busy, own, threads, cores)
    return Look(0.0, 0.0, 0.0, 0.0, threads)


def load_between(before: Look, after: Look) -> MachineLoad:
    """Return the load from one look to the other, by the threads that were there all the time."""
    total = after.total - before.total
    others = after.busy - before.busy - (after.own - before.own)
    own_total = total * after.cores
    both = before.threads.keys() & after.threads.keys()
    ran, waited = (sum(after.threads[n][k] - before.threads[n][k] for n in both) for k in (0, 1))
    return MachineLoad(
        (after.stolen - before.stolen) / total if total > 0 else None,
        waited / (ran + waited) if ran + waited > 0 else None,
        min(1.0, others / own_total) if own_total > 0 else None,
    )


class Watch:
    """Observer of the machine's load.

    `at_pause` is called before the first turn and after each round of turns, or before and after
    the measured steps, while no step is measured. `root` is the process that is measured together
    with all below it; None: this one. Below process 1 is also what other starters left behind, so
    that this process is measured in its place, and nothing is said of the others.
    """

    def __init__(self, root: int | None = None) -> None:
        self._root, self._tells_others = (None, False) if root == 1 else (root, True)
        self._looks: list[Look] = []
        self._gpu_processes: int | None = None

    def at_pause(self) -> None:
        """Read the counters once more, and who uses the GPUs."""
        self._looks = [*self._looks[:1], look(self._root)]
        if self._tells_others and (users := gpu.other_processes(self._root)) is not None:
            self._gpu_processes = max(users, self._gpu_processes or 0)

    def seen(self) -> MachineLoad:
        """Return what was seen."""
        load = load_between(self._looks[0], self._looks[-1])
        load = replace(load, gpu_processes=self._gpu_processes)
        return load if self._tells_others else replace(load, others=None)
