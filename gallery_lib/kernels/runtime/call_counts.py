"""Counts of which of our operators ran in this process, and how.

Calls are counted where the operators do their work, so that a run can report what it used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

KERNEL, PLAIN_TORCH = "own kernel", "plain torch"
_COUNTS: Counter[tuple[str, str]] = Counter()


def ran(operator: str, how: str) -> None:
    """Count one call of `operator`, which has just run as KERNEL or as PLAIN_TORCH."""
    _COUNTS[operator, how] += 1


def counted(
    operator: str, implementation: Callable[..., Any], is_kernel: Callable[..., bool] | None = None
) -> Callable[..., Any]:
    """Return `implementation`, wrapped so that each call of it is counted.

    A call counts as KERNEL where `is_kernel` returns True for the same arguments, else as
    PLAIN_TORCH.
    """

    def call(*arguments: Any) -> Any:
        ran(operator, KERNEL if is_kernel is not None and is_kernel(*arguments) else PLAIN_TORCH)
        return implementation(*arguments)

    return call


def counts() -> Counter[tuple[str, str]]:
    """Return the calls so far, by (operator, how)."""
    return _COUNTS.copy()


def summary(since: Counter[tuple[str, str]]) -> str:
    """Return one line about the calls since `since` was taken.

    For instance `optimizer_step_ (own kernel, 12 calls), …`; '' where there were none.
    """
    new = _COUNTS - since
    return ", ".join(
        f"{operator} ({how}, {number} call{'s' if number > 1 else ''})"
        for (operator, how), number in sorted(new.items())
    )
