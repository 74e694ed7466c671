"""Format of a batch's `report.json`, which is rewritten atomically after every notebook.

So the file exists and is true even if the runner was killed. `ended` is null then, and a notebook
that had not run says so.
"""

from __future__ import annotations

import dataclasses
import platform
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gallery_lib.errors import InputError
from gallery_lib.measure.comparison.result import Comparison
from gallery_lib.notebooks.batch.evidence import Status
from gallery_lib.stats import Ratio
from gallery_lib.system import hardware
from gallery_lib.system.files import read_json, write_json

SCHEMA = 3
REPORT_FILE = "report.json"


@dataclass(frozen=True)
class Compared:
    """A comparison of a notebook, reduced to its conditions and its verdict."""

    processes: int
    amp_level: str
    device: str
    verdict: str
    speedup: Ratio | None
    parity_passed: bool
    break_even_steps: int | None

    @classmethod
    def of(cls, comparison: Comparison) -> Compared:
        """Return the reduced form of a comparison."""
        first = comparison.baseline
        return cls(
            first.world_size,
            first.config["amp_level"],
            first.environment["device"],
            comparison.verdict,
            comparison.speedup,
            comparison.parity.passed,
            comparison.break_even_steps,
        )


@dataclass(frozen=True)
class Record:
    """Result of one notebook in a batch."""

    status: Status
    reason: str | None
    seconds: float  # of the last attempt, from the start of its process to its end
    date: str | None  # start time, ISO 8601; None: not run
    attempts: int  # in this batch, including repeats by --resume
    kept: bool  # whether --resume kept the earlier result
    parameters: dict[str, Any]
    digest: str  # of the notebook that ran (`plan.digest`), unless it was changed meanwhile
    folder: str | None  # of the last attempt, in the folder of the batch
    cells_run: int = 0
    cells: int = 0
    log_tail: list[str] = field(default_factory=list)
    comparisons: list[Compared] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    """Result of a batch; notebooks stand in the order in which they run."""

    command: str
    began: str  # ISO 8601
    ended: str | None  # None: not yet, or the runner was killed
    interrupted_by: str | None  # SIGINT or SIGTERM
    seconds: float
    options: dict[str, Any]
    machine: dict[str, Any]
    notebooks: dict[str, Record]

    def count(self, status: Status) -> int:
        """Return how many notebooks have the given status."""
        return sum(record.status == status for record in self.notebooks.values())

    @property
    def passed(self) -> bool:
        """Return whether every notebook passed."""
        return self.count("passed") == len(self.notebooks)


def machine() -> dict[str, Any]:
    """Return the facts about the machine that figures must be read with.

    torch is not imported, so GPUs are not named here; the results of the runs name them.
    """
    return {
        "python": platform.python_version(),
        "torch": version("torch"),
        "cpu": hardware.cpu_model(),
        "cores": hardware.cores(),
        "isa": hardware.isa(),
        "memory_bytes": hardware.memory_bytes(),
    }


def write_report(folder: Path, report: Report) -> None:
    """Write `report.json` into the folder of the batch."""
    write_json(folder / REPORT_FILE, {"schema": SCHEMA, **dataclasses.asdict(report)})


def read_report(folder: Path) -> Report:
    """Return the report of the batch in `folder`.

    Raises:
        InputError: for a missing report, and for one that cannot be read.
    """
    path = folder / REPORT_FILE
    try:
        return read_json(path, Report, schema=SCHEMA, again="Run the batch again.")
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist: there is no batch in that folder.", parameter=str(path)
        ) from None
