"""Phase on display as one line: its clock, what is counted, a bar, and an estimate.

An estimate of a phase's duration needs grounds: its own count, once a part of it is done, or
`expected`, its duration in earlier runs (expected_durations.py).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from tqdm.std import Bar

from gallery_lib.console.outlets import fit
from gallery_lib.console.table import duration

_BAR_WIDTH = 20
_SHORTEST_ESTIMATE = 10.0
"""Seconds. A shorter phase is over before its estimate is read."""
_COUNTED_PART = 0.2
"""Part of a phase that must be done before its own pace gives an estimate."""


@dataclass(frozen=True)
class ShownPhase:
    """Phase on display; the arguments of `Progress.show` say what the fields mean."""

    label: str
    part: str
    identity: tuple[str, Any]  # what makes it the same phase as before, under another label too
    began: float
    count: int
    counted_at: float
    total: int | None
    unit: str
    first: int
    least: int
    expected: float | None

    def about_seconds(self, now: float) -> tuple[float, str] | None:
        """Return the estimated seconds of the whole phase, and the grounds; None without any."""
        elapsed = now - self.began
        if self.total is not None and self.total > self.first:
            done, of = self.count - self.first, self.total - self.first
            if done >= max(self.least, _COUNTED_PART * of):
                estimate = (self.counted_at - self.began) / done * of
                return (estimate, "") if max(_SHORTEST_ESTIMATE, elapsed) <= estimate else None
        if self.expected is not None and max(_SHORTEST_ESTIMATE, elapsed) <= self.expected:
            return self.expected, ", as last time"
        return None

    def text(self, now: float, seconds_in_all: float, width: int | None) -> str:
        """Return the line, with a bar where `width` columns have room for one.

        Args:
            now: the time on the clock that noted when the phase began.
            seconds_in_all: the seconds since the display began.
            width: columns of the outlet; None for any length, and no bar.
        """
        elapsed = now - self.began
        clock = duration(elapsed)
        if about := self.about_seconds(now):
            clock += f" of about {duration(about[0])}{about[1]}"
        counted = f"{self.count} of {self.total} {self.unit}, " if self.total is not None else ""
        in_all = f"; {duration(seconds_in_all)} in all" if seconds_in_all >= elapsed + 1.0 else ""
        text = f"{self.label}: {counted}{clock}{in_all}"
        if width is None:
            return text
        if self.total and len(text) + _BAR_WIDTH + 1 <= width:
            letters = "u" if "utf" in (sys.stderr.encoding or "").lower() else "a"
            bar = format(Bar(min(1.0, self.count / self.total)), f"{_BAR_WIDTH}{letters}")
            text = f"{self.label}: {bar} {counted}{clock}{in_all}"
        return fit(text, width)
