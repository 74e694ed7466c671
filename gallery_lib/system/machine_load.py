"""Load of the machine while steps were measured, so that figures of a busy one say so.

Who measures looks before the first measured step and between measured steps, so that a look takes
no time from one. Compared are the looks: how long the threads of the measured processes waited for
a core, CPU time of other processes, and CPU time that the hypervisor gave to other machines
(steal). A busy machine widens a speed-up's interval and spoils every figure in seconds.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import psutil

from gallery_lib.system import hardware

# The limits above which a machine is called busy.
WAITED = 0.1
"""Part of the time with work to do that threads wait for a core; a loader costs some per cent."""
OTHER_CORES = 0.2
"""Cores that other processes take; an editor or an idle browser stays below."""
STOLEN = 0.02
"""Part of the CPU time that the hypervisor gives to other machines."""


@dataclass(frozen=True)
class Others:
    """CPU time that processes outside the measurement took over a period, in cores."""

    cores: float
    name: str  # the program whose processes took most; "" for none
    its_cores: float


@dataclass(frozen=True)
class MachineLoad:
    """Load that was seen while steps were measured. None: this system does not say."""

    cores: int
    turns: Others | None
    stolen: float | None  # part of the CPU time
    # Part of the time with work to do that the measured threads waited for a core.
    waited: float | None = None

    def reasons(self) -> list[str]:
        """Return what speaks against a quiet machine, a phrase each; nothing for a quiet one."""
        reasons = [self._waiting(), of_others(self.turns, self.cores, "while steps were measured")]
        if self.stolen is not None and self.stolen > STOLEN:
            reasons.append(
                f"the hypervisor gave {self.stolen:.0%} of the CPU time to other machines"
            )
        return [reason for reason in reasons if reason]

    def _waiting(self) -> str:
        if self.waited is None or self.waited <= WAITED:
            return ""
        return f"threads with work to do waited for a core {self.waited:.0%} of the time"

    def sentence(self) -> str:
        """Return what speaks against a quiet machine, and what to do; '' for a quiet one."""
        reasons = self.reasons()
        if not reasons:
            return ""
        advice = "times are longer than the machine's own, so repeat it when it is quiet"
        if reasons == [self._waiting()]:  # its own threads and loaders wait for one another
            advice = "fewer --workers or --threads leave a core to each"
        return f"The machine was busy: {'; '.join(reasons)}; {advice}."


def of_others(others: Others | None, cores: int, when: str) -> str:
    """Return what other processes took, as a phrase; "" where it was little or is not known."""
    if others is None or others.cores <= OTHER_CORES:
        return ""
    most = f", most of all `{others.name}` ({others.its_cores:.1f})" if others.name else ""
    return f"other processes took {others.cores:.1f} of {cores} cores {when}{most}"


# --------------------------------------------------------------------------------------------------
# Looking


@dataclass(frozen=True)
class Look:
    """The counters at one moment; times in CPU seconds since their beginning."""

    at: float
    stolen: float
    total: float
    others: dict[tuple[int, float], tuple[str, float]]  # by process number and birth: name, time
    # By thread of the measured processes: seconds on a core, and seconds of waiting for one.
    threads: dict[int, tuple[float, float]] = field(default_factory=dict)


def _below(process: int, parents: Mapping[int, int]) -> set[int]:
    """Return the numbers of the process and of its descendants; `parents` has those of all."""
    numbers = {process}
    while more := {child for child, parent in parents.items() if parent in numbers} - numbers:
        numbers |= more
    return numbers


def _threads_of(process: int) -> dict[int, tuple[float, float]]:
    """Return the seconds that each thread of a process ran, and waited for a core."""
    threads = {}
    with contextlib.suppress(OSError, ValueError):  # it has ended, or the kernel does not count
        for task in Path(f"/proc/{process}/task").iterdir():
            ran, waited, _ = (task / "schedstat").read_text().split()
            threads[int(task.name)] = int(ran) / 1e9, int(waited) / 1e9
    return threads


def look(root: int | None = None) -> Look:
    """Read the counters, of `root` (None: this process) with all below it and of all others.

    It takes some milliseconds. What cannot be read counts as none: a measurement does not fail.
    """
    allowed = os.sched_getaffinity(0)
    try:
        cpus = [one for n, one in enumerate(psutil.cpu_times(percpu=True)) if n in allowed]
    except (OSError, RuntimeError, ValueError):  # no /proc/stat, or one that is cut short
        cpus = []
    # Guest time is counted as user time already.
    total = sum(sum(times) - times.guest - times.guest_nice for times in cpus)
    wanted = ["pid", "ppid", "name", "create_time", "cpu_times"]
    seen = [process.info for process in psutil.process_iter(wanted) if process.info["cpu_times"]]
    ours = _below(root or os.getpid(), {info["pid"]: info["ppid"] for info in seen})
    others = {
        (i["pid"], i["create_time"]): (i["name"], sum(i["cpu_times"][:2]))
        for i in seen
        if i["pid"] not in ours
    }
    threads = {number: times for process in ours for number, times in _threads_of(process).items()}
    return Look(time.monotonic(), sum(times.steal for times in cpus), total, others, threads)


def others_between(looks: Sequence[Look]) -> Others | None:
    """Return the CPU time of others from the first look to the last; None where it is unknown.

    In a container they are those of the container: the others show as waiting or stolen time.
    """
    if len(looks) < 2 or looks[-1].at <= looks[0].at:
        return None
    taken: dict[str, float] = {}  # by program: a build, say, is many short processes
    for before, after in pairwise(looks):
        for process, (name, spent) in after.others.items():
            born = before.others.get(process, (name, 0.0))[1]
            taken[name] = taken.get(name, 0.0) + max(0.0, spent - born)
    elapsed = looks[-1].at - looks[0].at
    most = max(taken, key=lambda name: taken[name], default="")
    return Others(sum(taken.values()) / elapsed, most, taken.get(most, 0.0) / elapsed)


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
        waited = waited_between(self._pauses)
        return MachineLoad(hardware.cores(), others_between(self._pauses), stolen, waited)
