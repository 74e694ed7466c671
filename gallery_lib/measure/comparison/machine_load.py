"""Load of the machine by others while variants took turns, so that figures of a busy one say so.

The comparing process looks when it begins, before the first turn and after each round of turns,
when every variant waits. So a look takes no time from a measured step. Compared are the looks: CPU
time of processes that are not the comparison's, CPU time that the hypervisor gave to other machines
(steal), and the load average. Drift comes from the step times themselves.

Taking turns protects a speed-up from slow drift. But a busy machine widens its interval and spoils
every figure in seconds.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import psutil

from gallery_lib.system import hardware

OTHER_CORES = 0.2
"""Cores that other processes may take.

An editor, an idle browser and the notebook's own server stay below. A thread of a step that is held
up for a fifth of its time holds up all of them (straggler).
"""
STOLEN = 0.02
"""Part of the CPU time that the hypervisor may give to other machines."""
LOAD_PER_CORE = 2.0
"""Largest load average per core.

A comparison itself keeps one thread a core running, and its loaders some more.
"""
DRIFT = 0.15
"""Largest relative difference of the step time between the last third of the turns and the first.

A third has few turns, whose medians differ by some per cent on a quiet machine.
"""
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
    load_average: list[float] | None  # over a minute, before and after
    start_up: Others | None  # until the first turn
    turns: Others | None
    stolen: float | None  # part of the CPU time during the turns
    # By variant: how much longer its steps took in the last third of its turns than in the first.
    drift: dict[str, float]

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> MachineLoad:
        """Return the load from the plain values that `dataclasses.asdict` made of it."""
        periods = {
            name: Others(**values[name]) if values[name] else None for name in ("start_up", "turns")
        }
        return cls(**{**values, **periods})

    def reasons(self) -> list[str]:
        """Return what speaks against a quiet machine, a phrase each; nothing for a quiet one."""
        reasons = [
            of_others(self.start_up, self.cores, "before the turns"),
            of_others(self.turns, self.cores, "during the turns"),
        ]
        if self.stolen is not None and self.stolen > STOLEN:
            reasons.append(
                f"the hypervisor gave {self.stolen:.0%} of the CPU time to other machines"
            )
        if self.load_average and max(self.load_average) > LOAD_PER_CORE * self.cores:
            before, after = self.load_average
            reasons.append(
                f"the load average was {before:.1f} before and {after:.1f} after, on {self.cores} "
                "cores"
            )
        for name, drift in self.drift.items():
            if abs(drift) > DRIFT:
                longer = "longer" if drift > 0 else "less"
                reasons.append(
                    f"steps of {name} took {abs(drift):.0%} {longer} in the last third of its "
                    "turns than in the first"
                )
        return [reason for reason in reasons if reason]


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
    load_average: float | None
    busy: float  # of the CPUs that this process may use
    stolen: float
    total: float
    own: float  # of this process and all below it, those that have ended included
    others: dict[tuple[int, float], tuple[str, float]]  # by process number and birth: name, time


def _below(process: int, parents: Mapping[int, int]) -> set[int]:
    """Return the numbers of the process and of all its descendants.

    `parents` maps a process to its parent.
    """
    numbers, waiting = set(), [process]
    while waiting:
        numbers.add(number := waiting.pop())
        waiting += [
            child for child, parent in parents.items() if parent == number and child not in numbers
        ]
    return numbers


def look() -> Look:
    """Read the counters, which takes some milliseconds.

    What cannot be read counts as none: a comparison does not fail for it.
    """
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    try:
        cpus = [
            times
            for number, times in enumerate(psutil.cpu_times(percpu=True))
            if allowed is None or number in allowed
        ]
    except (OSError, RuntimeError, ValueError):  # no /proc/stat, or one that is cut short
        cpus = []
    stolen = sum(getattr(times, "steal", 0.0) for times in cpus)
    idle = sum(times.idle + getattr(times, "iowait", 0.0) for times in cpus)
    # Guest time is counted as user time already.
    guests = sum(getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0) for times in cpus)
    total = sum(map(sum, cpus)) - guests
    seen = [
        process.info
        for process in psutil.process_iter(["pid", "ppid", "name", "create_time", "cpu_times"])
    ]
    seen = [info for info in seen if info["cpu_times"] is not None]
    ours = _below(os.getpid(), {info["pid"]: info["ppid"] for info in seen})
    # User and system time, and both of ended children.
    own = sum(sum(info["cpu_times"][:4]) for info in seen if info["pid"] in ours)
    others = {
        (i["pid"], i["create_time"]): (i["name"], sum(i["cpu_times"][:2]))
        for i in seen
        if i["pid"] not in ours
    }
    average = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return Look(time.monotonic(), average, total - idle - stolen, stolen, total, own, others)


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


def drift(rounds: Sequence[Sequence[float]]) -> float | None:
    """Return how much longer steps took in the last third of the turns than in the first.

    It is the ratio of their medians, less one; None for few turns.
    """
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

    `at_pause` is called before the first turn and after each round of turns.
    """

    def __init__(self) -> None:
        self._begun = look()
        self._pauses: list[Look] = []

    def at_pause(self) -> None:
        """Read the counters once more.

        To be called while every variant waits, so that no measured step is disturbed.
        """
        self._pauses.append(look())

    def seen(self, rounds: Mapping[str, Sequence[Sequence[float]]]) -> MachineLoad:
        """Return what was seen; `rounds` are the step times of each variant by turn."""
        last = look()
        stolen = None
        if self._pauses and (total := self._pauses[-1].total - self._pauses[0].total) > 0:
            stolen = (self._pauses[-1].stolen - self._pauses[0].stolen) / total
        averages = self._begun.load_average, last.load_average
        drifts = {name: drift(turns) for name, turns in rounds.items()}
        return MachineLoad(
            cores=hardware.cores(),
            load_average=[value for value in averages if value is not None]
            if None not in averages
            else None,
            start_up=others_between([self._begun, *self._pauses[:1]], with_hidden=False),
            turns=others_between(self._pauses, with_hidden=True),
            stolen=stolen,
            drift={name: value for name, value in drifts.items() if value is not None},
        )
