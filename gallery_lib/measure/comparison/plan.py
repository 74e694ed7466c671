"""Plan of a comparison: the variants to run, and how their steps are divided into turns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gallery_lib.config import CompareConfig, TrainConfig
from gallery_lib.measure.comparison.gradient_probe import PROBE_BATCHES


@dataclass(frozen=True)
class Variant:
    """One way to run: options, with the words of a recipe and environment variables if needed."""

    config: TrainConfig
    recipe: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    counts_traffic: bool = False  # once more, after its last turn
    start_up_limit_seconds: float | None = None  # it is ended after this time; None: wait


@dataclass(frozen=True)
class Turns:
    """Number of steps, and how they are divided into blocks."""

    warmup_steps: int
    rounds: int
    block_steps: int
    probe_batches: int = PROBE_BATCHES

    @classmethod
    def of(cls, config: TrainConfig, compare: CompareConfig) -> Turns:
        """Return the turns of a comparison whose baseline runs with `config`."""
        # The probe has the batch of the first step after the warm-up as well.
        warmup = max(config.warmup_steps, compare.parity_steps, PROBE_BATCHES - 1)
        return cls(warmup, compare.rounds, compare.block_steps)

    @property
    def total_steps(self) -> int:
        """Return the number of steps of each variant."""
        return self.warmup_steps + self.rounds * self.block_steps


def configuration(config: TrainConfig, turns: Turns, run_dir: Path) -> TrainConfig:
    """Return the options of a variant's run.

    The run goes on when it diverges: the comparison then says so.
    """
    return dataclasses.replace(
        config,
        run_dir=str(run_dir),
        max_steps=turns.total_steps,
        epochs=None,
        warmup_steps=turns.warmup_steps,
        log_interval=1,
        terminate_on_nan=False,
    )


def folders_of_starts(folder: Path, starts: int) -> list[Path]:
    """Return the folder for the runs of each start: the first is `folder` itself."""
    return [folder, *(folder / f"start-{number}" for number in range(2, starts + 1))]
