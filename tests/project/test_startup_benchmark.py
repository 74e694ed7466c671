"""The benchmark of start-up tells from which step on a run is ahead of another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("ours", "others", "step"),
    [
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], 1),
        ([5.0, 5.5, 6.0, 6.5], [1.0, 3.0, 5.0, 7.0], 4),
        ([0.5, 4.0, 5.0], [1.0, 2.0, 6.0], 3),
        ([5.0, 6.0], [1.0, 2.0, 3.0], None),
        ([], [1.0], None),
        ([1.0, 2.0, 3.0], [1.5], 1),
        ([2.0, 3.0, 4.0], [1.0], 2),
    ],
)
def test_a_run_is_ahead_from_the_step_after_the_last_that_ended_later(
    ours: list[float],
    others: list[float],
    step: int | None,
    benchmark_module: Callable[[str], Any],
) -> None:
    assert benchmark_module("startup").ahead_from(ours, others) == step
