"""Load of the machine while steps were measured, so that figures of a busy one say so.

Who measures looks before the first measured step and between measured steps, so that a look takes
no time from one. Compared are the first look and the last: how long the threads of the measured
processes waited for a core, and CPU time that the hypervisor gave to other machines (steal). A busy
machine widens a speed-up's interval and spoils every figure in seconds.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
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
    threads = {}
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(root)
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(OSError, ValueError):  # ended, or the kernel does not count
                for task in Path(f"/proc/{one.pid}/task").iterdir():
                    ran, waited, _ = (task / "schedstat").read_text().split()
                    threads[int(task.name)] = int(ran) / 1e9, int(waited) / 1e9
    with contextlib.suppress(OSError, RuntimeError, ValueError):  # no /proc/stat, or cut short
        times = psutil.cpu_times()
        return Look(times.steal, sum(times) - times.guest - times.guest_nice, threads)
    return Look(0.0, 0.0, threads)


def load_between(before: Look, after: Look) -> MachineLoad:
    """Return the load from one look to the other, by the threads that were there all the time."""
    total = after.total - before.total
    both = before.threads.keys() & after.threads.keys()
    ran, waited = (sum(after.threads[n][k] - before.threads[n][k] for n in both) for k in (0, 1))
    return MachineLoad(
        (after.stolen - before.stolen) / total if total > 0 else None,
        waited / (ran + waited) if ran + waited > 0 else None,
    )


class Watch:
    """Observer of the machine's load.

    `at_pause` is called before the first turn and after each round of turns, or before and after
    the measured steps, while no step is measured. `root` is the process that is measured together
    with all below it; None: this one.
    """

    def __init__(self, root: int | None = None) -> None:
        self._root = root
        self._looks: list[Look] = []

    def at_pause(self) -> None:
        """Read the counters once more."""
        self._looks = [*self._looks[:1], look(self._root)]

    def seen(self) -> MachineLoad:
        """Return what was seen."""
        return load_between(self._looks[0], self._looks[-1])
