"""Load of the machine while steps were measured, so that figures of a busy one say so.

Who measures looks before the first measured step and between measured steps, so that a look takes
no time from one. Compared are the first look and the last: how long the threads of the measured
processes waited for a core, and CPU time that the hypervisor gave to other machines (steal). A busy
machine widens a speed-up's interval and spoils every figure in seconds.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil

WAITED = 0.1
"""Part of the time with work to do that threads wait for a core, above which a machine is busy.

A loader costs some per cent.
"""
STOLEN = 0.02
"""Part of the CPU time that the hypervisor gives to other machines, likewise."""


@dataclass(frozen=True)
class MachineLoad:
    """Load that was seen while steps were measured. None: this system does not say."""

    stolen: float | None  # part of the CPU time
    # Part of the time with work to do that the measured threads waited for a core.
    waited: float | None = None

    def reasons(self) -> list[str]:
        """Return what speaks against a quiet machine, a phrase each; nothing for a quiet one."""
        reasons = []
        if self.waited is not None and self.waited > WAITED:
            reasons.append(
                f"threads with work to do waited for a core {self.waited:.0%} of the time"
            )
        if self.stolen is not None and self.stolen > STOLEN:
            reasons.append(
                f"the hypervisor gave {self.stolen:.0%} of the CPU time to other machines"
            )
        return reasons

    def sentence(self) -> str:
        """Return what speaks against a quiet machine, and what to do; '' for a quiet one."""
        if not (reasons := self.reasons()):
            return ""
        return (
            f"The machine was busy: {'; '.join(reasons)}; times are longer than the machine's own. "
            "Repeat it when nothing else runs (`top`), or with fewer --workers or --threads."
        )


@dataclass(frozen=True)
class Look:
    """The counters at one moment; times in CPU seconds since their beginning."""

    stolen: float
    total: float
    # By thread of the measured processes: seconds on a core, and seconds of waiting for one.
    threads: dict[int, tuple[float, float]]


def look(root: int | None = None) -> Look:
    """Read the counters of the machine, and of `root` (None: this process) with all below it.

    It takes some milliseconds. What cannot be read counts as none: a measurement does not fail.
    """
    allowed = os.sched_getaffinity(0)
    try:
        cpus = [one for n, one in enumerate(psutil.cpu_times(percpu=True)) if n in allowed]
    except (OSError, RuntimeError, ValueError):  # no /proc/stat, or one that is cut short
        cpus = []
    # Guest time is counted as user time already.
    total = sum(sum(times) - times.guest - times.guest_nice for times in cpus)
    threads = {}
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(root)
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(OSError, ValueError):  # ended, or the kernel does not count
                for task in Path(f"/proc/{one.pid}/task").iterdir():
                    ran, waited, _ = (task / "schedstat").read_text().split()
                    threads[int(task.name)] = int(ran) / 1e9, int(waited) / 1e9
    return Look(sum(times.steal for times in cpus), total, threads)


def waited_between(looks: Sequence[Look]) -> float | None:
    """Return which part of the time with work to do the measured threads waited; None: unknown."""
    ran = waited = 0.0
    for before, after in pairwise(looks):
        for number in before.threads.keys() & after.threads.keys():
            ran += after.threads[number][0] - before.threads[number][0]
            waited += after.threads[number][1] - before.threads[number][1]
    return waited / (ran + waited) if ran + waited > 0 else None


class Watch:
    """Observer of the machine's load.

    `at_pause` is called before the first turn and after each round of turns, or before and after
    the measured steps, while no step is measured. `root` is the process that is measured together
    with all below it; None: this one.
    """

    def __init__(self, root: int | None = None) -> None:
        self._root = root
        self._pauses: list[Look] = []

    def at_pause(self) -> None:
        """Read the counters once more."""
        self._pauses.append(look(self._root))

    def seen(self) -> MachineLoad:
        """Return what was seen."""
        stolen = None
        if self._pauses and (total := self._pauses[-1].total - self._pauses[0].total) > 0:
            stolen = (self._pauses[-1].stolen - self._pauses[0].stolen) / total
        return MachineLoad(stolen, waited_between(self._pauses))
