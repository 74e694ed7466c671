"""Result of a comparison, as `comparison.json` keeps it (schema 1). Needs no torch."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path

from gallery_lib import stats
from gallery_lib.errors import InputError
from gallery_lib.system.files import read_json, write_json
from gallery_lib.system.machine_load import MachineLoad
from gallery_lib.train.results import Results, check_folder

SCHEMA = 1
FILE = "comparison.json"
# Names of checks. The last one looks at all steps (pair.py).
FINITE_LOSSES, SAME_START, LATER_LOSSES = "finite losses", "same start", "all losses"
# Verdicts where there is no speed-up.
NOT_COMPARABLE = "not comparable"
NOT_ANY_MORE = "same at first, then not"
TOO_SMALL = "too small to judge"
OTHER_CLOCKS = "at other GPU clocks"


@dataclass(frozen=True)
class Check:
    """One check: the worst value met, the limit that held there, and where it was.

    None stands for what is no finite number.
    """

    name: str
    passed: bool
    worst: float | None
    limit: float | None
    where: str
    # The baseline's own distance from float64 there, where the limit is made of it.
    # In `all losses`: the second run's from the first.
    baselines: float | None = None


@dataclass(frozen=True)
class Parity:
    """All checks of a comparison."""

    passed: bool
    checks: list[Check]
    # A batch size at which they may be judged, where a second run of the plain variant fails them
    # as well: rounding alone explains the failure.
    batch_to_take: int | None = None

    @property
    def failed(self) -> list[Check]:
        """Return the checks that failed."""
        return [check for check in self.checks if not check.passed]

    @property
    def of_rounding(self) -> bool:
        """Return whether checks failed, and only such as rounding may explain."""
        names = {check.name for check in self.failed}
        return bool(names) and not names & {FINITE_LOSSES, SAME_START}

    @property
    def verdict(self) -> str | None:
        """Return why there is no speed-up; None where parity holds."""
        if self.passed:
            return None
        if self.batch_to_take is not None:
            return TOO_SMALL
        only_later = [check.name for check in self.failed] == [LATER_LOSSES]
        return NOT_ANY_MORE if only_later else NOT_COMPARABLE


@dataclass(frozen=True)
class Comparison:
    """Outcome of a comparison; `variants` holds the baseline first."""

    task: str
    variants: dict[str, Results]
    speedup: stats.Ratio | None  # None: parity failed, or the GPU had other clocks
    parity: Parity
    break_even_steps: int | None  # None unless the second variant is measurably faster
    verdict: str
    chance: dict[str, float]
    confidence: float  # level of the speed-up's interval
    load: MachineLoad | None = None  # what else wanted the machine; None: not looked at
    folder: str = ""  # where it was read or written

    def __post_init__(self) -> None:
        if len(self.variants) != 2:
            raise ValueError("variants must be two")

    @property
    def baseline(self) -> Results:
        """Return the first variant's results."""
        return next(iter(self.variants.values()))

    @property
    def candidate(self) -> Results:
        """Return the second variant's results."""
        return list(self.variants.values())[1]


def break_even_steps(baseline: Results, candidate: Results) -> int | None:
    """Return after how many steps the candidate's longer start-up has paid for itself.

    None when its steps are not shorter.
    """
    saved_per_step = baseline.step_seconds["p50"] - candidate.step_seconds["p50"]
    if saved_per_step <= 0:
        return None
    longer = candidate.startup_seconds["total"] - baseline.startup_seconds["total"]
    return max(0, math.ceil(longer / saved_per_step))


def write_comparison(comparison: Comparison) -> None:
    """Write `comparison.json` into the comparison's folder, atomically."""
    values = {"schema": SCHEMA, **dataclasses.asdict(comparison), "folder": ""}
    write_json(Path(comparison.folder) / FILE, values)


def read_comparison(folder: Path | str) -> Comparison:
    """Return a comparison from its folder; InputError when there is none that can be read."""
    check_folder(folder)
    path = Path(folder) / FILE
    try:
        found = read_json(path, Comparison, again="Run the comparison again.", schema=SCHEMA)
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist: that comparison did not finish.", parameter=str(path)
        ) from None
    return dataclasses.replace(found, folder=str(folder))
