"""Result of measuring a task in several variants, as `gallery bench` keeps it (schema 1).

A variant that did not run stays, with its reason. Ratios are given where both variants compute the
same training. Needs no torch.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gallery_lib.measure.comparison.result import Parity
from gallery_lib.stats import Ratio
from gallery_lib.system.files import read_json, write_json
from gallery_lib.system.gpu import GpuState
from gallery_lib.train.results import hidden_wait

SCHEMA = 1
AmpLevel = Literal["O0", "O1"]
# The baseline, by the precision of a bench.
EAGER: dict[AmpLevel, str] = {"O0": "eager-fp32", "O1": "eager-O1"}
OURS = "ours"
# The peers, and eager PyTorch, as somebody who tunes by hand uses them (variants.py).
GRAPHS = ("reduce-overhead-best", "max-autotune-best")
"""torch.compile in its modes with CUDA graphs, which ours has as well; for GPUs."""
BEST = ("torch.compile-best", *GRAPHS, "accelerate-best", "fabric-best", "eager-best")
VARIANTS = (*EAGER.values(), *BEST, OURS)  # all variants, in the order of tables
# All variants, in the order in which they get a place beside the baseline. What a headline
# compares is alive at the same time if memory allows.
TURN_ORDER = (OURS, *BEST, *EAGER.values())


@dataclass(frozen=True)
class Row:
    """Measurement of one variant; empty but for the reason where it did not run, or crashed."""

    reason: str | None
    step_seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    samples_per_second: dict[str, float] = dataclasses.field(default_factory=dict)
    startup_seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    peak_memory_bytes: dict[str, int | None] = dataclasses.field(default_factory=dict)
    techniques: dict[str, str] = dataclasses.field(default_factory=dict)
    parity: Parity | None = None  # None for the baseline
    # As in `train.results`; samples_per_second has `sustained` where there is one.
    sustained: dict[str, float] = dataclasses.field(default_factory=dict)
    gpu: GpuState | None = None  # as in `train.results`

    @property
    def hidden_wait(self) -> float:
        """Return how long a sustained step waits for data beyond the median one, in seconds."""
        return hidden_wait(self.step_seconds["p50"], self.sustained)

    @property
    def comparable(self) -> bool:
        """Return whether the variant ran and computes the same training as the baseline."""
        return self.reason is None and (self.parity is None or self.parity.passed)


@dataclass(frozen=True)
class Outcome:
    """Measurement of one task."""

    digest: str  # of what was asked, the package, the versions and the machine
    date: str
    seconds: float
    reason: str | None  # why nothing could be measured
    sizes: dict[str, Any]
    rows: dict[str, Row]  # the baseline first
    # slower, faster, ratio, low, high: how many times as fast the second is, if it is
    ratios: list[tuple[str, str, float, float, float]]

    def __post_init__(self) -> None:
        if not self.rows:
            raise ValueError("rows must have an entry")
        for _, _, ratio, low, high in self.ratios:
            Ratio(ratio, low, high)  # refuses what is none

    @property
    def baseline(self) -> str:
        """Return the variant that the others are compared with."""
        return next(iter(self.rows))

    @property
    def short_of_gpu_memory(self) -> bool:
        """Return whether the memory of the GPU ran out for the baseline or for ours."""
        needed = (self.rows.get(name) for name in (self.baseline, OURS))
        reasons = (self.reason, *(row.reason for row in needed if row))
        return any("the memory of the GPU ran out" in str(reason) for reason in reasons)

    def ratio(self, slower: str, faster: str) -> Ratio | None:
        """Return how many times as fast `faster` is as `slower`, or None without such a ratio."""
        return next((Ratio(*r[2:]) for r in self.ratios if tuple(r[:2]) == (slower, faster)), None)


@dataclass(frozen=True)
class Bench:
    """Measurements of all tasks, with the conditions that they must be read with."""

    kind: str  # bench or waterfall
    command: str
    options: dict[str, Any]
    environment: dict[str, Any]
    versions: dict[str, str]
    tasks: dict[str, Outcome]

    @property
    def baseline(self) -> str:
        """Return the baseline of all tasks. There must be a task."""
        return next(iter(self.tasks.values())).baseline

    @property
    def amp_level(self) -> AmpLevel:
        """Return the precision of the variants that are compared. There must be a task."""
        return next((level for level, eager in EAGER.items() if eager == self.baseline), "O0")


def best_of_others(outcome: Outcome) -> str | None:
    """Return the best form that ours has the smallest lead over in turns, if any.

    None as well where one has no ratio because of a GPU's clocks: the best is not known then.
    """
    ratios = {name: ratio.ratio for name in BEST if (ratio := outcome.ratio(name, OURS))}
    rows = {name: row for name, row in outcome.rows.items() if name in BEST}
    if any(row.comparable and row.gpu and name not in ratios for name, row in rows.items()):
        return None
    return min(ratios, key=ratios.__getitem__) if ratios else None


def write_bench(path: Path, bench: Bench) -> None:
    """Write the bench as JSON, atomically."""
    write_json(path, {"schema": SCHEMA, **dataclasses.asdict(bench)})


def read_bench(path: Path) -> Bench:
    """Return a bench from its file, which exists; InputError for what is no bench."""
    return read_json(path, Bench, schema=SCHEMA, again="Delete it, and measure again.")
