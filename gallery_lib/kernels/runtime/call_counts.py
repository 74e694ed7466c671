"""Which of our operators ran in this process, and how: counted where they do their work, so that a run can tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

KERNEL, PLAIN_TORCH = "own kernel", "plain torch"
_COUNTS: Counter[tuple[str, str]] = Counter()


def ran(operator: str, how: str) -> None:
    """`operator` has just run as KERNEL or as PLAIN_TORCH."""
    _COUNTS[operator, how] += 1


def counted(
    operator: str, implementation: Callable[..., Any], is_kernel: Callable[..., bool] | None = None
) -> Callable[..., Any]:
    """`implementation`, counted each time; as a kernel where `is_kernel` of the same arguments says so, else as plain torch."""

    def call(*arguments: Any) -> Any:
        ran(operator, KERNEL if is_kernel is not None and is_kernel(*arguments) else PLAIN_TORCH)
        return implementation(*arguments)

    return call


def counts() -> Counter[tuple[str, str]]:
    """Calls so far, by (operator, how)."""
    return _COUNTS.copy()


def summary(since: Counter[tuple[str, str]]) -> str:
    """Of the calls since `since` was taken, in a line: `optimizer_step_ (own kernel, 12 calls), …`; '' for none."""
    new = _COUNTS - since
    return ", ".join(
        f"{operator} ({how}, {number} call{'s' if number > 1 else ''})"
        for (operator, how), number in sorted(new.items())
    )
