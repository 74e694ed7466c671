"""Time of a training step by groups of operators, with torch.profiler.

The profiler costs time itself, most where operators are small. So its times are for seeing what a
step consists of. How fast a step is, a comparison in turns says (measure/comparison).
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from gallery_lib.measure.profile.operator_groups import OUTSIDE, group_of

_ERRORS_ALONE = "99"
"""Level of messages at which the profiler tells nothing of what it does."""


@dataclass(frozen=True)
class StepProfile:
    """Seconds of one step by group of operators, the largest first, profiler included."""

    groups: dict[str, float]

    @property
    def seconds(self) -> float:
        """Return the seconds of the whole step."""
        return sum(self.groups.values())

    def share(self, group: str) -> float:
        """Return the part of the step that a group takes, from 0 to 1."""
        return self.groups.get(group, 0.0) / self.seconds


def profile_steps(run: Callable[[], Any], steps: int) -> StepProfile:
    """Run `steps` training steps under the profiler, and return the time of one.

    On CUDA the time is that of the kernels on the device, and what is between them is waiting. On
    the CPU it is that of the operators, without those that they call.

    Args:
        run: does the steps. A compiled model must have been compiled before.
        steps: how many it does.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", _ERRORS_ALONE)
    on_cuda = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
    with profile(activities=activities, acc_events=True) as profiler:
        began = time.perf_counter()
        run()
        if on_cuda:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    groups: dict[str, float] = defaultdict(float)
    for event in profiler.events() or ():
        own = event.self_device_time_total if on_cuda else event.self_cpu_time_total
        if own > 0 and not event.name.startswith("ProfilerStep"):
            group = group_of(event.name, in_optimizer=_is_in_optimizer(event))
            groups[group] += own / 1e6 / steps
    outside = seconds / steps - sum(groups.values())
    if outside > 0:
        groups[OUTSIDE] = outside
    return StepProfile(dict(sorted(groups.items(), key=lambda item: -item[1])))


def _is_in_optimizer(event: Any) -> bool:
    while event is not None:
        if event.name.startswith("Optimizer.step"):
            return True
        event = event.cpu_parent
    return False
