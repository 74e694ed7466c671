"""Which of our operators ran in this process, and how: counted where they do their work, so that a run can tell."""

from __future__ import annotations

from collections import Counter

KERNEL, PLAIN_TORCH = "own kernel", "plain torch"
_COUNTS: Counter[tuple[str, str]] = Counter()


def ran(operator: str, how: str) -> None:
    """`operator` has just run as KERNEL or as PLAIN_TORCH."""
    _COUNTS[operator, how] += 1


def counts() -> Counter[tuple[str, str]]:
    """Calls so far, by (operator, how)."""
    return _COUNTS.copy()


def summary(since: Counter[tuple[str, str]]) -> str:
    """Of the calls since `since` was taken, in a line: `optimizer_step_ (own kernel, 12 calls), …`; '' for none."""
    new = _COUNTS - since
    return ", ".join(f"{operator} ({how}, {number} call{'s' if number > 1 else ''})" for (operator, how), number in sorted(new.items()))
