"""Result of a trial, as `gallery try --json` writes it (schema 1). Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gallery_lib.stats import Ratio

SCHEMA = 1


@dataclass(frozen=True)
class Parity:
    """Verdict on two runs: whether they are the same training, and the phrase that says why."""

    passed: bool
    why: str
    worst: float | None = 0.0
    """Largest difference met, relative to its value; None where it is not finite."""
    limit: float = 0.0


@dataclass(frozen=True)
class Share:
    """A part of a plain cycle, in seconds."""

    name: str
    seconds: float


@dataclass(frozen=True)
class Form:
    """What was measured of one form of the script; times in seconds."""

    cycle_seconds: float
    """Median over all cycles that count."""
    rounds: list[list[float]]
    """Seconds of each cycle that counts, by round."""
    shares: list[Share]
    page_faults: float
    said: list[str]


@dataclass(frozen=True)
class Trial:
    """Result of `gallery try`; `--json` writes it (schema 1)."""

    command: str
    script: str
    """Name of the script, as the verdict has it."""
    environment: dict[str, Any]
    models: list[dict[str, Any]]
    optimizers: list[dict[str, Any]]
    cycle: int
    """Steps of optimizers that make one step of the training: two in a GAN with two."""
    processes: int
    threads: int
    """PyTorch's threads in each process."""
    parity: Parity
    ratio: Ratio | None
    """Plain over accelerated seconds; None without parity."""
    techniques: dict[str, Ratio]
    """How many times as fast the accelerated form is as without a part; with `--techniques`."""
    pace: list[float]
    """Seconds of a piece of work that is always the same, by round (`pace.Pace`)."""
    limit_share: float | None
    """Share of this machine's limits that forward and backward pass reach, on a CPU."""
    plain: Form | None
    accelerated: Form | None
    left_out: dict[str, dict[str, int]]
    """Cycles of each form that do not count, by what else happened in them."""
    findings: list[str]
    """What holds the script back."""
    notes: list[str]
    change: str | None
    """Diff of the script that makes it the accelerated one, where the places are sure."""
    seconds: float
    """Duration of the trial."""
    schema: int = SCHEMA

    @property
    def verdict(self) -> str:
        """Return `faster`, `slower`, `no measurable difference`, or `no ratio`."""
        return self.ratio.verdict if self.ratio else "no ratio"
