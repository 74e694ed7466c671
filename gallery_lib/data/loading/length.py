"""How long a data set, sampler or loader says that it is."""

from __future__ import annotations

from typing import Any


def length_of(data: Any) -> int | None:
    """Return `len(data)`, or None where it has none: streams raise TypeError, and torch's own samplers NotImplementedError."""
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None
