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
from gallery_lib.measure.machine_load import MachineLoad
from gallery_lib.results import Results, check_folder


@dataclass(frozen=True)
class Check:
    """One check: the worst value met, the limit that held there, and where it was."""

    name: str
    passed: bool
    worst: float
    limit: float
    where: str
    baselines: float | None = None  # the baseline's own distance from float64 there, where the limit is made of it


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
    """What came out. `variants` holds the baseline first; `speedup` is None when parity failed.

    `break_even_steps` is None unless the second variant is measurably faster.
    """

    task: str
    folder: str
    variants: dict[str, Results]
    speedup: stats.Ratio | None
    parity: Parity
    break_even_steps: int | None
    verdict: str
    chance: dict[str, float]
    confidence: float | None = None  # level of the speed-up's interval; None: of a comparison that did not keep it
    load: MachineLoad | None = None  # what else wanted the machine; None: not looked at

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
            "confidence": self.confidence,
            "load": dataclasses.asdict(self.load) if self.load else None,
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
    numbers = ("worst", "limit", "baselines")  # an infinite one is text
    found: list[dict[str, Any]] = values["parity"]["checks"]
    checks = [Check(**{**c, **{name: float(c[name]) for name in numbers if c.get(name) is not None}}) for c in found]
    speedup = stats.Ratio(**values["speedup"]) if values["speedup"] else None
    return Comparison(
        task=values["task"],
        folder=folder,
        variants={name: Results(**results) for name, results in values["variants"].items()},
        speedup=speedup,
        parity=Parity(values["parity"]["passed"], checks),
        break_even_steps=values["break_even_steps"] if values["verdict"] == "faster" else None,  # older ones kept it in any case
        verdict=values["verdict"],
        chance=values["chance"],
        confidence=values.get("confidence"),
        load=MachineLoad.from_json(values["load"]) if values.get("load") else None,
    )
