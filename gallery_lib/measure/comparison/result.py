"""Result of a comparison, as `comparison.json` keeps it (schema 1). Needs no torch."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired

from gallery_lib import stats
from gallery_lib.errors import InputError
from gallery_lib.system.json_files import Misfit, converted, having, read_json
from gallery_lib.system.machine_load import MachineLoad
from gallery_lib.train.results import Results, check_folder, check_results

SCHEMA = 1
FINITE_LOSSES, SAME_START, LATER_LOSSES = "finite losses", "same start", "all losses"
"""Names of checks. The last one looks at all steps (pair.py)."""
NOT_COMPARABLE = "not comparable"
NOT_ANY_MORE = "same at first, then not"
TOO_SMALL = "too small to judge"
"""Verdicts where there is no speed-up."""


@dataclass(frozen=True)
class Check:
    """One check: the worst value met, the limit that held there, and where it was."""

    name: str
    passed: bool
    worst: float
    limit: float
    where: str
    # The baseline's own distance from float64 there, where the limit is made of it.
    # In `all losses`: the second run's from the first.
    baselines: float | None = None
    median: float | None = None  # over all parameters, where the check is of parameters


@dataclass(frozen=True)
class Parity:
    """All checks of a comparison."""

    passed: bool
    checks: list[Check]
    # A batch size at which they may be judged, where a second run of the plain variant fails them
    # as well: rounding alone explains the failure.
    batch_to_take: int | None = None

    @property
    def of_rounding(self) -> bool:
        """Return whether checks failed, and only such as rounding may explain."""
        failed = {check.name for check in self.checks if not check.passed}
        return bool(failed) and not failed & {FINITE_LOSSES, SAME_START}

    @property
    def verdict(self) -> str | None:
        """Return why there is no speed-up; None where parity holds."""
        if self.passed:
            return None
        if self.batch_to_take is not None:
            return TOO_SMALL
        failed = [check.name for check in self.checks if not check.passed]
        return NOT_ANY_MORE if failed == [LATER_LOSSES] else NOT_COMPARABLE

    def as_json(self) -> dict[str, Any]:
        """Return plain values; numbers that are not finite become text."""
        checks = [
            {
                name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
                for name, value in dataclasses.asdict(check).items()
            }
            for check in self.checks
        ]
        return {**dataclasses.asdict(self), "checks": checks, "verdict": self.verdict}


@dataclass(frozen=True)
class Comparison:
    """Outcome of a comparison; `variants` holds the baseline first."""

    task: str
    folder: str
    variants: dict[str, Results]
    speedup: stats.Ratio | None  # None: parity failed
    parity: Parity
    break_even_steps: int | None  # None unless the second variant is measurably faster
    verdict: str
    chance: dict[str, float]
    # Level of the speed-up's interval; None: the comparison did not keep it.
    confidence: float | None = None
    load: MachineLoad | None = None  # what else wanted the machine; None: not looked at

    @property
    def baseline(self) -> Results:
        """Return the first variant's results."""
        return next(iter(self.variants.values()))

    @property
    def candidate(self) -> Results:
        """Return the second variant's results."""
        return list(self.variants.values())[1]

    def as_json(self) -> dict[str, Any]:
        """Return the content of `comparison.json`."""
        values = dataclasses.asdict(self)
        del values["folder"]
        return {"schema": SCHEMA, **values, "parity": self.parity.as_json()}


def break_even_steps(baseline: Results, candidate: Results) -> int | None:
    """Return after how many steps the candidate's longer start-up has paid for itself.

    None when its steps are not shorter.
    """
    saved_per_step = baseline.step_seconds["p50"] - candidate.step_seconds["p50"]
    if saved_per_step <= 0:
        return None
    longer = candidate.startup_seconds["total"] - baseline.startup_seconds["total"]
    return max(0, math.ceil(longer / saved_per_step))


def read_comparison(folder: Path | str) -> Comparison:
    """Return a comparison read back from its folder.

    Raises:
        InputError: when there is none, or one that is damaged or of another version.
    """
    check_folder(folder)
    path, again = Path(folder) / "comparison.json", "Run the comparison again."
    try:
        kept = read_json(path, _Kept, again=again, schema=SCHEMA, check=_check)
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist: that comparison did not finish.", parameter=str(path)
        ) from None
    checks = converted(_with_numbers(kept.parity["checks"]), list[Check])
    parity = Parity(kept.parity["passed"], checks, kept.parity.get("batch_to_take"))
    # Older comparisons kept it in any case.
    steps = kept.break_even_steps if kept.verdict == "faster" else None
    values = {**vars(kept), "parity": parity, "break_even_steps": steps}
    return Comparison(folder=str(folder), **values)


@dataclass(frozen=True)
class _Kept:
    """Content of `comparison.json`."""

    task: str
    variants: dict[str, Results]
    speedup: stats.Ratio | None
    parity: dict[str, Any]
    break_even_steps: int | None
    verdict: str
    chance: dict[str, float]
    confidence: float | None = None
    load: MachineLoad | None = None


_PARITY = having(
    {"passed": bool, "checks": list[dict[str, Any]], "batch_to_take": NotRequired[int | None]}
)


def check_parity(parity: dict[str, Any], place: str) -> None:
    """Raise Misfit unless `parity` is what `Parity.as_json` returns."""
    converted(parity, _PARITY, place)
    checks = converted(_with_numbers(parity["checks"]), list[Check], f"{place}.checks")
    if parity["passed"] != all(check.passed for check in checks):
        raise Misfit("contradicts its checks", f"{place}.passed")


def _with_numbers(checks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the checks with numbers for the texts that `Parity.as_json` makes of infinite ones."""
    texts = ("inf", "-inf", "nan")
    return [{name: float(v) if v in texts else v for name, v in check.items()} for check in checks]


def _check(kept: _Kept) -> None:
    if len(kept.variants) != 2:
        raise Misfit(f"must be two, and are {len(kept.variants)}", "variants")
    for name, results in kept.variants.items():
        check_results(results, f"variants.{name}")
    check_parity(kept.parity, "parity")
