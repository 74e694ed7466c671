"""The shape of a batch's `report.json` (schema 1), and how it is written: after every notebook, and atomically.

So it is there, and true, also when the runner was killed; `ended` is then null, and what had not run says so.
"""

from __future__ import annotations

import dataclasses
import platform
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gallery_lib.errors import InputError
from gallery_lib.measure.comparison.result import Comparison, read_comparison
from gallery_lib.notebooks.batch.evidence import Status
from gallery_lib.system import hardware
from gallery_lib.system.json_files import read_json, write_json

SCHEMA = 1
REPORT_FILE = "report.json"


@dataclass(frozen=True)
class Record:
    """What came out of one notebook."""

    status: Status
    reason: str | None
    seconds: float  # of the last attempt, from the start of its process to its end
    date: str | None  # when it began, ISO 8601; None: not run
    attempts: int  # in this batch, retries and what --resume ran again included
    kept: bool  # by --resume, from before
    parameters: dict[str, Any]
    digest: str  # of what ran (`plan.digest`), unless it was changed meanwhile
    folder: str | None  # of the last attempt, in the folder of the batch
    cells_run: int = 0
    cells: int = 0
    log_tail: list[str] = field(default_factory=list)
    comparisons: list[dict[str, Any]] = field(
        default_factory=list
    )  # as `comparisons_in` gives them
    code: str | None = (
        None  # digest of the code that was measured (`measured_code`); None: unknown, or changed meanwhile
    )
    kernel_starts: int = 1  # of the last attempt; more than 1: its kernel had lost a port to another process, and was started anew


@dataclass(frozen=True)
class Report:
    """What came out of a batch, notebooks in the order in which they run."""

    command: str
    began: str  # ISO 8601
    ended: str | None  # None: not yet, or the runner was killed
    interrupted_by: str | None  # SIGINT or SIGTERM
    seconds: float
    options: dict[str, Any]
    machine: dict[str, Any]
    notebooks: dict[str, Record]

    def count(self, status: Status) -> int:
        """How many notebooks have that status."""
        return sum(record.status == status for record in self.notebooks.values())

    @property
    def passed(self) -> bool:
        """Whether every notebook passed."""
        return self.count("passed") == len(self.notebooks)


def machine() -> dict[str, Any]:
    """What the figures must be read with. Without torch, so it does not name the GPUs; the runs' own results do."""
    return {
        "python": platform.python_version(),
        "torch": version("torch"),
        "cpu": hardware.cpu_model(),
        "cores": hardware.cores(),
        "isa": hardware.isa(),
        "memory_bytes": hardware.memory_bytes(),
    }


def comparisons_in(folder: Path) -> list[dict[str, Any]]:
    """Return the comparisons below a folder, each reduced to its conditions and its verdict. Raises InputError for a damaged one."""
    return [
        _reduced(read_comparison(path.parent)) for path in sorted(folder.rglob("comparison.json"))
    ]


def _reduced(comparison: Comparison) -> dict[str, Any]:
    first = comparison.baseline
    return {
        "processes": first.world_size,
        "amp_level": first.config["amp_level"],
        "device": first.environment["device"],
        "verdict": comparison.verdict,
        "speedup": dataclasses.asdict(comparison.speedup) if comparison.speedup else None,
        "parity_passed": comparison.parity.passed,
        "break_even_steps": comparison.break_even_steps,
        "metrics": {variant: results.metrics for variant, results in comparison.variants.items()},
        "chance": comparison.chance,
        "techniques": comparison.candidate.techniques,
    }


def write_report(folder: Path, report: Report) -> None:
    """`report.json` in the folder of the batch."""
    write_json(folder / REPORT_FILE, {"schema": SCHEMA, **dataclasses.asdict(report)})


def read_report(folder: Path) -> Report:
    """The report of the batch in `folder`. Raises InputError when there is none, or one that cannot be read."""
    path = folder / REPORT_FILE
    try:
        return read_json(path, Report, schema=SCHEMA, again="Run the batch again.")
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: there is no batch in that folder.") from None
