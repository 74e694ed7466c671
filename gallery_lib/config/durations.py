"""Parsing of durations as people write them: `90`, `90s`, `10m`, `2h`, `1h30m`."""

from __future__ import annotations

import re

FORMS = "seconds, or such as 90s, 10m, 2h, 1h30m"
_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_NUMBER = r"\d+(?:\.\d+)?"
_WRITTEN = re.compile(
    "".join(rf"(?:(?P<{unit}>{_NUMBER}){unit})?" for unit in _SECONDS), re.IGNORECASE
)


def check_plain(text: str) -> None:
    """Raise ValueError for what Python reads as a number and few mean: `１２`, `1_000`, ` 8`."""
    if not text.isascii() or "_" in text or text != text.strip():
        raise ValueError


def seconds_of(text: str) -> float:
    """Return the seconds that `text` means: 5400 for `1h30m`.

    Raises:
        ValueError: for other text.
    """
    check_plain(text)
    written = _WRITTEN.fullmatch(text)
    if not text or written is None:
        return float(text)
    return sum(
        float(number) * _SECONDS[unit] for unit, number in written.groupdict(default="0").items()
    )
