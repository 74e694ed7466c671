"""Measurement of one variant that took turns: results, gradients, and step times by turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gallery_lib.train.results import Results


@dataclass(frozen=True)
class Measurement:
    """Measurement of one variant.

    `rounds` holds its step times in seconds by turn, the first of each left out.
    """

    results: Results
    probe: dict[str, Any]
    rounds: list[list[float]]


def rounds_of(durations: list[float], warmup_steps: int, block_steps: int) -> list[list[float]]:
    """Return step times by turn, without the first step of each turn.

    In that step caches are cold and batches are waiting.
    """
    counted = durations[warmup_steps:]
    return [
        counted[i + 1 : i + block_steps]
        for i in range(0, len(counted) - block_steps + 1, block_steps)
    ]
