"""Load of the machine while steps were measured, so that figures of a busy one say so.

Who measures looks at the beginning, before the first measured step and between measured steps, so
that a look takes no time from one. Compared are the looks: how long the threads of the measured
processes waited for a core, CPU time of other processes, CPU time that the hypervisor gave to other
machines (steal), and the load average. Drift comes from the step times themselves. A busy machine
widens a speed-up's interval and spoils every figure in seconds.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import psutil

from gallery_lib.stats import bounded
from gallery_lib.system import hardware

# The limits above which a machine is called busy.
WAITED = 0.1
"""Part of the time with work to do that threads wait for a core; a loader costs some per cent."""
OTHER_CORES = 0.2
"""Cores that other processes take; an editor or an idle browser stays below."""
STOLEN = 0.02
"""Part of the CPU time that the hypervisor gives to other machines."""
LOAD_PER_CORE = 2.0
"""Load average per core; a comparison itself runs a thread a core, and its loaders."""
DRIFT = 0.15
"""Relative difference of the step time between the last third of the turns and the first."""
_ROUNDS_TO_JUDGE_DRIFT = 6


@dataclass(frozen=True)
class Others:
    """CPU time that processes outside the comparison took over a period, in cores."""

    cores: float
    # The program whose processes took most; "" where none of them is visible from here.
    name: str
    its_cores: float


@dataclass(frozen=True)
class MachineLoad:
    """Load that was seen. None: this system does not say."""

    cores: int
    # Over a minute, before and after.
    load_average: Annotated[list[float], bounded(min_length=2, max_length=2)] | None
    start_up: Others | None  # until the first measured step
    turns: Others | None  # while steps were measured
    stolen: float | None  # part of the CPU time while steps were measured
    # By variant: how much longer its steps took in the last third of its turns than in the first.
    drift: dict[str, float]
    # Part of the time with work to do that the measured threads waited for a core.
    waited: float | None = None

    def reasons(self) -> list[str]:
        """Return what speaks against a quiet machine, a phrase each; nothing for a quiet one."""
        reasons = [
            self._waiting(),
            of_others(self.start_up, self.cores, "during the start"),
            of_others(self.turns, self.cores, "while steps were measured"),
        ]
        if self.stolen is not None and self.stolen > STOLEN:
            reasons.append(
                f"the hypervisor gave {self.stolen:.0%} of the CPU time to other machines"
            )
        if self.load_average and max(self.load_average) > LOAD_PER_CORE * self.cores:
            before, after = self.load_average
            load = f"the load average was {before:.1f} before and {after:.1f} after"
            reasons.append(f"{load}, on {self.cores} cores")
        for name, drift in self.drift.items():
            if abs(drift) > DRIFT:
                longer = "longer" if drift > 0 else "less"
                took = f"steps of {name} took {abs(drift):.0%} {longer}"
                reasons.append(f"{took} in the last third of its turns than in the first")
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
    load_average: float
    busy: float  # of the CPUs that this process may use
    stolen: float
    total: float
    own: float  # of this process and all below it, those that have ended included
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
    stolen = sum(times.steal for times in cpus)
    idle = sum(times.idle + times.iowait for times in cpus)
    # Guest time is counted as user time already.
    total = sum(sum(times) - times.guest - times.guest_nice for times in cpus)
    wanted = ["pid", "ppid", "name", "create_time", "cpu_times"]
    seen = [process.info for process in psutil.process_iter(wanted) if process.info["cpu_times"]]
    ours = _below(root or os.getpid(), {info["pid"]: info["ppid"] for info in seen})
    # User and system time, and both of ended children.
    own = sum(sum(info["cpu_times"][:4]) for info in seen if info["pid"] in ours)
    others = {
        (i["pid"], i["create_time"]): (i["name"], sum(i["cpu_times"][:2]))
        for i in seen
        if i["pid"] not in ours
    }
    threads = {number: times for process in ours for number, times in _threads_of(process).items()}
    busy = total - idle - stolen
    return Look(time.monotonic(), os.getloadavg()[0], busy, stolen, total, own, others, threads)


def others_between(looks: Sequence[Look], *, with_hidden: bool) -> Others | None:
    """Return the CPU time of others from the first look to the last; None where it is unknown.

    The visible processes may not be all: in a container they are those of the container. With
    `with_hidden`, the system's own count of busy time, less the comparison's, counts where it is
    more. That does not suit the start of variants: some of their processes end uncounted, and what
    they took would be taken for hidden.
    """
    if len(looks) < 2 or looks[-1].at <= looks[0].at:
        return None
    taken: dict[str, float] = {}  # by program: a build, say, is many short processes
    for before, after in pairwise(looks):
        for process, (name, spent) in after.others.items():
            born = before.others.get(process, (name, 0.0))[1]
            taken[name] = taken.get(name, 0.0) + max(0.0, spent - born)
    elapsed = looks[-1].at - looks[0].at
    visible = sum(taken.values())
    busy, own = (getattr(looks[-1], name) - getattr(looks[0], name) for name in ("busy", "own"))
    hidden = max(0.0, busy - own) if with_hidden else 0.0
    most = max(taken, key=lambda name: taken[name], default=None)
    if most is None or taken[most] == 0.0:
        return Others(hidden / elapsed, "", 0.0)
    return Others(max(visible, hidden) / elapsed, most, taken[most] / elapsed)


def waited_between(looks: Sequence[Look]) -> float | None:
    """Return which part of the time with work to do the measured threads waited; None: unknown."""
    ran = waited = 0.0
    for before, after in pairwise(looks):
        for number in before.threads.keys() & after.threads.keys():
            ran += after.threads[number][0] - before.threads[number][0]
            waited += after.threads[number][1] - before.threads[number][1]
    return waited / (ran + waited) if ran + waited > 0 else None


def drift(rounds: Sequence[Sequence[float]]) -> float | None:
    """Return the ratio of medians of the last third of the turns to the first, less 1, or None."""
    if len(rounds) < _ROUNDS_TO_JUDGE_DRIFT:
        return None
    third = len(rounds) // 3
    first, last = (
        statistics.median(step for turn in part for step in turn)
        for part in (rounds[:third], rounds[-third:])
    )
    return last / first - 1.0


class Watch:
    """Observer of the machine's load, from its making on.

    `at_pause` is called before the first turn and after each round of turns, or before and after
    the measured steps, while no step is measured. `root` is the process that is measured together
    with all below it; None: this one.
    """

    def __init__(self, root: int | None = None) -> None:
        self._root = root
        self._begun = look(root)
        self._pauses: list[Look] = []

    def at_pause(self) -> None:
        """Read the counters once more."""
        self._pauses.append(look(self._root))

    def seen(self, rounds: Mapping[str, Sequence[Sequence[float]]]) -> MachineLoad:
        """Return what was seen; `rounds` are the step times of each variant by turn."""
        last = look(self._root)
        stolen = None
        if self._pauses and (total := self._pauses[-1].total - self._pauses[0].total) > 0:
            stolen = (self._pauses[-1].stolen - self._pauses[0].stolen) / total
        drifts = {name: drift(turns) for name, turns in rounds.items()}
        return MachineLoad(
            cores=hardware.cores(),
            load_average=[self._begun.load_average, last.load_average],
            start_up=others_between([self._begun, *self._pauses[:1]], with_hidden=False),
            turns=others_between(self._pauses, with_hidden=True),
            stolen=stolen,
            drift={name: value for name, value in drifts.items() if value is not None},
            waited=waited_between(self._pauses),
        )
