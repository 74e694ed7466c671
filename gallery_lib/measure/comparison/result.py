"""Result of a comparison, as `comparison.json` keeps it (schema 1). Needs no torch."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gallery_lib import stats
from gallery_lib.errors import InputError
from gallery_lib.measure.comparison.machine_load import MachineLoad
from gallery_lib.system.json_files import Misfit, converted, read_json
from gallery_lib.train.results import Results, check_folder, results_from


@dataclass(frozen=True)
class Check:
    """One check: the worst value met, the limit that held there, and where it was."""

    name: str
    passed: bool
    worst: float
    limit: float
    where: str
    # The baseline's own distance from float64 there, where the limit is made of it.
    baselines: float | None = None


@dataclass(frozen=True)
class Parity:
    """All checks of a comparison."""

    passed: bool
    checks: list[Check]

    def as_json(self) -> dict[str, Any]:
        """Return plain values; an infinite worst value becomes text."""
        rows = [dataclasses.asdict(check) for check in self.checks]
        checks = [
            {
                k: v if not isinstance(v, float) or math.isfinite(v) else str(v)
                for k, v in row.items()
            }
            for row in rows
        ]
        return {"passed": self.passed, "checks": checks}


@dataclass(frozen=True)
class Comparison:
    """Outcome of a comparison; `variants` holds the baseline first.

    `speedup` is None when parity failed. `break_even_steps` is None unless the second variant is
    measurably faster.
    """

    task: str
    folder: str
    variants: dict[str, Results]
    speedup: stats.Ratio | None
    parity: Parity
    break_even_steps: int | None
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
        return {
            "schema": 1,
            "task": self.task,
            "variants": {
                name: dataclasses.asdict(results) for name, results in self.variants.items()
            },
            "speedup": dataclasses.asdict(self.speedup) if self.speedup else None,
            "parity": self.parity.as_json(),
            "break_even_steps": self.break_even_steps,
            "verdict": self.verdict,
            "chance": self.chance,
            "confidence": self.confidence,
            "load": dataclasses.asdict(self.load) if self.load else None,
        }


def break_even_steps(baseline: Results, candidate: Results) -> int | None:
    """Return after how many steps the candidate's longer start-up has paid for itself.

    None when its steps are not shorter.
    """
    saved_per_step = baseline.step_seconds["p50"] - candidate.step_seconds["p50"]
    if saved_per_step <= 0:
        return None
    return max(
        0,
        math.ceil(
            (candidate.startup_seconds["total"] - baseline.startup_seconds["total"])
            / saved_per_step
        ),
    )


_AGAIN = "Run the comparison again."


def read_comparison(folder: Path | str) -> Comparison:
    """Return a comparison read back from its folder.

    Raises:
        InputError: when there is none, or one that is damaged or of another version.
    """
    check_folder(folder)
    path = Path(folder) / "comparison.json"
    try:
        values = read_json(path, dict[str, Any], again=_AGAIN)
        return _from_json(str(folder), values)
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist: that comparison did not finish.", parameter=str(path)
        ) from None
    except Misfit as error:
        raise InputError(
            f"{path} is damaged, or of another version: {error}. {_AGAIN}",
            parameter=error.place or str(path),
        ) from None


@dataclass(frozen=True)
class _Kept:
    """Content of `comparison.json`, with the variants' results still as plain JSON."""

    task: str
    variants: dict[str, dict[str, Any]]
    speedup: stats.Ratio | None
    parity: dict[str, Any]
    break_even_steps: int | None
    verdict: str
    chance: dict[str, float]
    schema: int = 1
    confidence: float | None = None
    load: dict[str, Any] | None = None


def _from_json(folder: str, values: dict[str, Any]) -> Comparison:
    kept = converted(values, _Kept)
    if len(kept.variants) != 2:
        raise Misfit(f"must be two, and are {len(kept.variants)}", "variants")
    rows = converted(kept.parity.get("checks"), list[dict[str, Any]], "parity.checks")
    numbers = ("worst", "limit", "baselines")  # an infinite one is text
    try:
        checks = [
            Check(**{**c, **{name: float(c[name]) for name in numbers if c.get(name) is not None}})
            for c in rows
        ]
        load = MachineLoad.from_json(kept.load) if kept.load else None
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise Misfit(f"parity or load: {error}") from None
    return Comparison(
        task=kept.task,
        folder=folder,
        variants={
            name: results_from(results, f"variants.{name}")
            for name, results in kept.variants.items()
        },
        speedup=kept.speedup,
        parity=Parity(converted(kept.parity.get("passed"), bool, "parity.passed"), checks),
        # Older comparisons kept it in any case.
        break_even_steps=kept.break_even_steps if kept.verdict == "faster" else None,
        verdict=kept.verdict,
        chance=kept.chance,
        confidence=kept.confidence,
        load=load,
    )
