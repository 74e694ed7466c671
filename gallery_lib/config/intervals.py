"""Interval of checkpoints as people write it: `20` or `20steps`, `10min`, `90s`, `1h30m`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gallery_lib.config import durations
from gallery_lib.errors import InputError

FORMS = "a number of steps such as 20, or a time such as 10min, 90s or 2h"
_STEPS = re.compile(r"(\d+)\s*(?:steps?)?", re.IGNORECASE | re.ASCII)
_LONGEST_SECONDS = 30 * 86_400.0
_MOST_STEPS = 1_000_000_000


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
            seconds = durations.seconds_of(re.sub(r"min(?:utes?|s)?", "m", text, flags=re.I))
        except ValueError:
            seconds = 0.0
        if 0.0 < seconds <= _LONGEST_SECONDS and not text.replace(".", "").isdecimal():
            return Interval(seconds=seconds)
    raise InputError(f"{parameter}={text!r} must be {FORMS}.", parameter=parameter)
