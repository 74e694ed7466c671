"""Ask a data set, sampler or loader for its length."""

from __future__ import annotations

from typing import Any


def length_of(data: Any) -> int | None:
    """Return `len(data)`, or None if it has none.

    Streams raise TypeError, and torch's own samplers NotImplementedError.
    """
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None
