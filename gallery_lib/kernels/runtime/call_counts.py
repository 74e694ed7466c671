"""Counts of which of our operators ran in this process, and how.

`operators` counts them where the work is done, so that a run can report what it used.
"""

from __future__ import annotations

from collections import Counter

KERNEL, PLAIN_TORCH = "own kernel", "plain torch"
CALLS: Counter[tuple[str, str]] = Counter()
"""Calls so far, by (operator, how); an operator adds 1 where it does its work."""


def counts() -> Counter[tuple[str, str]]:
    """Return the calls so far, by (operator, how)."""
    return CALLS.copy()


def summary(since: Counter[tuple[str, str]]) -> str:
    """Return one line about the calls since `since` was taken.

    For instance `optimizer_step_ (own kernel, 12 calls), …`; '' where there were none.
    """
    new = CALLS - since
    return ", ".join(
        f"{operator} ({how}, {number} call{'s' if number > 1 else ''})"
        for (operator, how), number in sorted(new.items())
    )
