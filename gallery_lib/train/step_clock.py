"""Clock for training steps and their phases on the device that works, with page faults on the host.

On the CPU a step ends when the call returns. On CUDA the host runs ahead of the device. So events
on the stream time the steps. They are read later, which does not make the device wait. `pause` and
`resume` cut out the time in which another variant has its turn.
"""

from __future__ import annotations

import resource
import time
from typing import Any


def _page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


class StepClock:
    """Durations in seconds of steps that `step_done()` marks, without paused time.

    Paused is the time between `pause()` and `resume()`. `phase_done(name)` marks the end of a part
    of the step. What follows the last mark belongs to no phase.
    """

    def __init__(self, device_type: str) -> None:
        self.cuda = device_type == "cuda"
        self.durations: list[float] = []
        # Minor faults of this process, by step: pages that its allocator had given back.
        self.page_faults: list[int] = []
        self.phases: dict[str, list[float]] = {}
        self.paused_seconds = 0.0
        self._pending: list[tuple[Any, Any]] = []
        self._pending_phases: list[tuple[str, Any, Any]] = []
        self._last: Any = None
        self._last_phase: Any = None
        self._last_faults = 0
        self._paused_at = 0.0

    def _mark(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def start(self) -> None:
        """Start the clock: the first step begins now."""
        self._last = self._last_phase = self._mark()
        self._last_faults = _page_faults()

    def phase_done(self, name: str) -> None:
        """Mark the end of a part of the current step (on CUDA: that it is queued)."""
        now = self._mark()
        if self.cuda:
            self._pending_phases.append((name, self._last_phase, now))
        else:
            self.phases.setdefault(name, []).append(now - self._last_phase)
        self._last_phase = now

    def step_done(self) -> None:
        """Mark the end of one step (on CUDA: that it is queued) and the beginning of the next."""
        now = self._mark()
        if self.cuda:
            self._pending.append((self._last, now))
        else:
            self.durations.append(now - self._last)
        self._last = self._last_phase = now
        faults = _page_faults()
        self.page_faults.append(faults - self._last_faults)
        self._last_faults = faults

    def read(self) -> list[float]:
        """Return all durations so far in seconds; on CUDA this waits for the device."""
        if self._pending:
            self._pending[-1][1].synchronize()
            self.durations.extend(begin.elapsed_time(end) / 1000.0 for begin, end in self._pending)
            for name, begin, end in self._pending_phases:
                self.phases.setdefault(name, []).append(begin.elapsed_time(end) / 1000.0)
            self._pending.clear()
            self._pending_phases.clear()
        return self.durations

    def usual_phases(self, warmup: int = 0) -> dict[str, float]:
        """Return the seconds of each phase in a usual step.

        They are means over those steps after `warmup` whose durations are in the middle half. So
        they add up to such a step. Medians of single phases need not: a step that waits for data
        may have a short rest.
        """
        durations = self.read()
        by_duration = sorted(range(warmup, len(durations)), key=durations.__getitem__)
        quarter = len(by_duration) // 4
        middle = by_duration[quarter : len(by_duration) - quarter]
        return {
            name: sum(values[step] for step in middle) / len(middle)
            for name, values in self.phases.items()
        }

    def pause(self) -> None:
        """Stop the clock after the device has finished its queued work."""
        self.read()
        self._paused_at = time.perf_counter()

    def resume(self) -> None:
        """Restart the clock in the middle of a step, whose time begins anew."""
        self.paused_seconds += time.perf_counter() - self._paused_at
        self.start()
