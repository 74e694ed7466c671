"""What came out of a comparison, as `comparison.json` keeps it (schema 1). Read and written without torch."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gallery_lib import stats
from gallery_lib.errors import InputError
from gallery_lib.results import Results, check_folder


@dataclass(frozen=True)
class Check:
    """One check: the worst value met, the limit that held there, and where it was."""

    name: str
    passed: bool
    worst: float
    limit: float
    where: str


@dataclass(frozen=True)
class Parity:
    """All checks of a comparison."""

    passed: bool
    checks: list[Check]

    def as_json(self) -> dict[str, Any]:
        """Plain values; an infinite worst value becomes text."""
        rows = [dataclasses.asdict(check) for check in self.checks]
        checks = [{k: v if not isinstance(v, float) or math.isfinite(v) else str(v) for k, v in row.items()} for row in rows]
        return {"passed": self.passed, "checks": checks}


@dataclass(frozen=True)
class Comparison:
    """What came out. `variants` holds the baseline first; `speedup` is None when parity failed."""

    task: str
    folder: str
    variants: dict[str, Results]
    speedup: stats.Ratio | None
    parity: Parity
    break_even_steps: int | None
    verdict: str
    chance: dict[str, float]

    @property
    def baseline(self) -> Results:
        """The first variant's results."""
        return next(iter(self.variants.values()))

    @property
    def candidate(self) -> Results:
        """The second variant's results."""
        return list(self.variants.values())[1]

    def as_json(self) -> dict[str, Any]:
        """The content of `comparison.json`."""
        return {
            "schema": 1,
            "task": self.task,
            "variants": {name: dataclasses.asdict(results) for name, results in self.variants.items()},
            "speedup": dataclasses.asdict(self.speedup) if self.speedup else None,
            "parity": self.parity.as_json(),
            "break_even_steps": self.break_even_steps,
            "verdict": self.verdict,
            "chance": self.chance,
        }


def break_even_steps(baseline: Results, candidate: Results) -> int | None:
    """Steps after which the candidate's longer start-up has paid for itself; None when its steps are not shorter."""
    saved_per_step = baseline.step_seconds["p50"] - candidate.step_seconds["p50"]
    if saved_per_step <= 0:
        return None
    return max(0, math.ceil((candidate.startup_seconds["total"] - baseline.startup_seconds["total"]) / saved_per_step))


def read_comparison(folder: Path | str) -> Comparison:
    """A comparison read back from its folder. Raises InputError when there is none, or one that is damaged or of another version."""
    check_folder(folder)
    path = Path(folder) / "comparison.json"
    try:
        return _from_json(str(folder), json.loads(path.read_text()))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: that comparison did not finish.") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is damaged, or of another version ({type(error).__name__}: {error}). Run the comparison again.") from None


def _from_json(folder: str, values: dict[str, Any]) -> Comparison:
    checks = [Check(**{**c, "worst": float(c["worst"]), "limit": float(c["limit"])}) for c in values["parity"]["checks"]]
    speedup = stats.Ratio(**values["speedup"]) if values["speedup"] else None
    return Comparison(
        task=values["task"],
        folder=folder,
        variants={name: Results(**results) for name, results in values["variants"].items()},
        speedup=speedup,
        parity=Parity(values["parity"]["passed"], checks),
        break_even_steps=values["break_even_steps"],
        verdict=values["verdict"],
        chance=values["chance"],
    )
