"""Effects of techniques of communication with made-up figures, for tests of what shows them."""

from __future__ import annotations

import dataclasses

from gallery_lib.config import Comm
from gallery_lib.measure.communication.strategies import ALONE, PLAIN, Effect, Effects
from gallery_lib.stats import ratio_of_medians

BASELINE = [[0.4, 0.42], [0.41, 0.43], [0.4, 0.41], [0.4, 0.42]]


def effect(wire: str, seconds: float, error: float | None, same: bool = True) -> Effect:
    """Return the effect of a technique whose steps take `seconds`, in four rounds."""
    rounds = [[seconds, seconds], [seconds, seconds * 1.01], [seconds, seconds], [seconds, seconds]]
    ratio = ratio_of_medians(BASELINE, rounds)
    return Effect(dataclasses.asdict(Comm(wire=wire)), rounds, ratio, 4.2 * 2**20, error, same)


def effects() -> Effects:
    """Return effects of DDP, bf16, int8 with wrong gradients, and no communication."""
    plain = dataclasses.replace(effect("exact", 0.4, 3e-8), ratio=None, rounds=BASELINE)
    ways = {
        PLAIN: plain,
        "bf16": effect("bf16", 0.2, 0.002),
        "int8": effect("int8", 0.1, 0.5),
        ALONE: effect("exact", 0.05, None),
    }
    return Effects("2 hosts × 1 processes", 1_000_000, ways)
