"""Durations as people write them (`90`, `10m`, `1h30m`), and intervals between checkpoints."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gallery_lib.errors import InputError

DURATIONS = "seconds, or such as 90s, 10m, 2h, 1h30m"
INTERVALS = "a number of steps such as 20, or a time such as 10min, 90s or 2h"
_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_WRITTEN = re.compile("".join(rf"(?:(?P<{u}>\d+(?:\.\d+)?){u})?" for u in _SECONDS), re.IGNORECASE)
_STEPS = re.compile(r"(\d+)\s*(?:steps?)?", re.IGNORECASE | re.ASCII)
_LONGEST_SECONDS = 30 * 86_400.0
_MOST_STEPS = 1_000_000_000


def check_plain(text: str) -> None:
    """Raise ValueError for what Python reads as a number and few mean: `１２`, `1_000`, ` 8`."""
    if not text.isascii() or "_" in text or text != text.strip():
        raise ValueError


def seconds_of(text: str) -> float:
    """Return the seconds that `text` means, 5400 for `1h30m`; raise ValueError for other text."""
    check_plain(text)
    written = _WRITTEN.fullmatch(text)
    if not text or written is None:
        return float(text)
    return sum(float(n) * _SECONDS[unit] for unit, n in written.groupdict(default="0").items())


@dataclass(frozen=True)
class Interval:
    """Interval between two checkpoints: a number of steps, or seconds. The other is None."""

    steps: int | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        return f"{self.steps} steps" if self.steps else f"{self.seconds:g} s"


def interval_of(text: str | int, parameter: str = "checkpoint_every") -> Interval:
    """Return the interval that `text` means.

    Raises:
        InputError: for other text, and for an interval of nothing or of more than a month.
    """
    text = str(text)
    if steps := _STEPS.fullmatch(text):
        if 1 <= int(steps[1]) <= _MOST_STEPS:
            return Interval(steps=int(steps[1]))
    else:
        try:
            seconds = seconds_of(re.sub(r"min(?:utes?|s)?", "m", text, flags=re.I))
        except ValueError:
            seconds = 0.0
        if 0.0 < seconds <= _LONGEST_SECONDS and not text.replace(".", "").isdecimal():
            return Interval(seconds=seconds)
    raise InputError(f"{parameter}={text!r} must be {INTERVALS}.", parameter=parameter)
