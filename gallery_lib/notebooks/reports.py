"""Report of a batch: JSON for programs, text for a terminal, JUnit XML for CI, HTML for people.

`report.json` is rewritten atomically after every notebook. So it exists and is true even if the
runner was killed: `ended` is null then, and a notebook that had not run says so. The HTML page is
self-contained, without scripts, pictures or network access. In the XML, `failed` is a failure, `not
run` is skipped, and everything else that did not pass is an error.

Two reports are compared by `gallery compare BEFORE AFTER`. A speed-up has an interval, so its
change has one too. A change is marked only if its interval excludes 1; other changes are noise.
Lost parity and a notebook that no longer passes are regressions as well. Speed-ups under other
parameters are shown and not judged, and neither is the duration of a notebook: one measurement has
no interval.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import platform
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jinja2

from gallery_lib import stats
from gallery_lib.console.text import duration, text_columns, text_table, visible
from gallery_lib.errors import InputError
from gallery_lib.measure.comparison.result import Comparison, read_comparison
from gallery_lib.notebooks.evidence import LOG_FILE, RUNS_FOLDER, Status
from gallery_lib.report import verdict
from gallery_lib.system import hardware
from gallery_lib.system.files import read_json, write_json

SCHEMA = 3
REPORT_FILE = "report.json"
JUNIT_FILE = "report.xml"
PAGE_FILE = "report.html"
_ELEMENTS = {"failed": "failure", "not run": "skipped"}
_LOG_LINES_SHOWN = 6


@dataclass(frozen=True)
class Compared:
    """A comparison of a notebook, reduced to its conditions and its verdict."""

    processes: int
    amp_level: str
    device: str
    verdict: str
    speedup: stats.Ratio | None
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


# --------------------------------------------------------------------------------------------------
# The forms of one report


def write(folder: Path, report: Report) -> None:
    """Write the three report files, JSON last because --resume goes by that one."""
    (folder / JUNIT_FILE).write_bytes(junit(report))
    (folder / PAGE_FILE).write_text(html(report), encoding="utf-8")
    write_json(folder / REPORT_FILE, {"schema": SCHEMA, **dataclasses.asdict(report)})


def named(folder: Path) -> str:
    """Return a line that names the report files."""
    files = (str(folder / name) for name in (REPORT_FILE, JUNIT_FILE, PAGE_FILE))
    return f"reports: {', '.join(files)}"


def speedup(comparison: Compared) -> str:
    """Return `1.47× (1.44 to 1.54)`, or the verdict where there is no speed-up."""
    return str(comparison.speedup or comparison.verdict)


def speedups(record: Record) -> str:
    """Return the comparisons of a notebook as one table cell."""
    return "; ".join(f"{c.processes}p {c.amp_level} {speedup(c)}" for c in record.comparisons)


def status(record: Record) -> str:
    """Return the status, with notes on a kept result and repeated attempts."""
    notes = ["kept"] if record.kept else []
    notes += [f"attempt {record.attempts}"] if record.attempts > 1 else []
    return record.status + (f" ({', '.join(notes)})" if notes else "")


def totals(report: Report) -> str:
    """Return the totals, such as `11 of 13 passed; 1 failed, 1 timeout, in 12 min 3 s`."""
    others = ", ".join(
        f"{n} {kind}"
        for kind in ("failed", "timeout", "kernel died", "not run")
        if (n := report.count(kind))
    )
    interrupted = f", interrupted by {report.interrupted_by}" if report.interrupted_by else ""
    passed = f"{report.count('passed')} of {len(report.notebooks)} passed"
    return f"{passed}{'; ' + others if others else ''}{interrupted}, in {duration(report.seconds)}."


def _failed(report: Report) -> dict[str, Record]:
    """Return the notebooks that ran and did not pass."""
    ended = ("passed", "not run")
    return {name: one for name, one in report.notebooks.items() if one.status not in ended}


def text(report: Report, folder: Path) -> str:
    """Return the report of the batch in `folder` as text for a terminal."""
    if len(report.notebooks) == 1:
        ((name, record),) = report.notebooks.items()
        return "\n".join(_one_notebook(name, record, folder / (record.folder or "")))
    rows = [["notebook", "status", "duration", "cells", "speed-up"]]
    for name, record in report.notebooks.items():
        ran = [duration(record.seconds), f"{record.cells_run}/{record.cells}"]
        rows.append([name, status(record), *(ran if record.date else ["", ""]), speedups(record)])
    parts = [text_table(rows)]
    for name, record in _failed(report).items():
        parts += [f"{name}: {record.status}\n  {record.reason}", *_shown_log(record)]
    return "\n".join([*parts, "", totals(report)])


def _one_notebook(name: str, record: Record, folder: Path) -> list[str]:
    """Return how the notebook ended, what it measured, and where to read more, a line each."""
    ended = f"{name}: {status(record)}"
    if record.date is not None:
        ended += f", {record.cells_run} of {record.cells} code cells in {duration(record.seconds)}"
    lines = [ended]
    if record.status != "passed":
        lines += [f"  {record.reason}", *_shown_log(record)]
    for path in sorted((folder / RUNS_FOLDER).rglob("comparison.json")):
        with contextlib.suppress(InputError):  # a damaged one is the reason above
            lines += ["", *verdict.lines(read_comparison(path.parent))]
    files = {
        "notebook": folder / f"{name}.ipynb",
        "log": folder / LOG_FILE,
    }
    rows = [[f"{what}:", str(file)] for what, file in files.items() if file.exists()]
    return [*lines, *([""] if rows else []), *text_columns(rows)]


def _shown_log(record: Record) -> list[str]:
    return [f"  | {line}" for line in record.log_tail[-_LOG_LINES_SHOWN:]]


def junit(report: Report) -> bytes:
    """Return the report as JUnit XML in UTF-8, with a test case for each notebook."""
    failures, skipped = report.count("failed"), report.count("not run")
    attributes = {
        "name": "gallery",
        "time": f"{report.seconds:.1f}",
        "tests": str(len(report.notebooks)),
        "failures": str(failures),
        "errors": str(len(_failed(report)) - failures),
        "skipped": str(skipped),
    }
    suites = ElementTree.Element("testsuites", attributes)
    suite = ElementTree.SubElement(
        suites, "testsuite", {**attributes, "timestamp": report.began[:19]}
    )
    for name, record in report.notebooks.items():
        about = {"classname": "notebooks", "name": name, "time": f"{record.seconds:.1f}"}
        case = ElementTree.SubElement(suite, "testcase", about)
        if record.status != "passed":
            element = ElementTree.SubElement(
                case,
                _ELEMENTS.get(record.status, "error"),
                {"message": record.reason or "", "type": record.status},
            )
            element.text = "\n".join(record.log_tail)
    ElementTree.indent(suites)
    xml = ElementTree.tostring(suites, encoding="unicode", xml_declaration=True)
    return visible(xml).encode()  # XML has no control characters


def html(report: Report) -> str:
    """Return the report as an HTML page."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gallery_lib.notebooks", package_path=""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    # GPUs are known once a run has recorded them.
    devices = [c.device for record in report.notebooks.values() for c in record.comparisons]
    device = next(iter(devices), "GPUs not asked about")
    page = environment.get_template("report.html.jinja").render(
        report=report,
        machine=hardware.describe({**report.machine, "device": device}),
        totals=totals(report),
        failed=_failed(report),
        status=status,
        speedup=speedup,
        duration=duration,
    )
    return visible(page)


# --------------------------------------------------------------------------------------------------
# Two reports compared


@dataclass(frozen=True)
class Change:
    """One line of the report: a notebook, or one of its comparisons, before and after."""

    what: str
    before: str
    after: str
    change: str = ""  # "" if there is nothing to compute
    mark: str = ""  # "regression: …", "improvement", or "" for noise and for equal values


def _of_status(name: str, before: Record | None, after: Record | None) -> Change:
    old, new = (
        f"{side.status}, {duration(side.seconds)}" if side else "absent" for side in (before, after)
    )
    mark = ""
    if before and after and before.status != after.status:
        lost = f"regression: {after.status}" if before.status == "passed" else ""
        mark = "improvement" if after.status == "passed" else lost
    return Change(name, old, new, "", mark)


def _of_comparison(what: str, before: Compared, after: Compared, *, same: bool) -> Change:
    texts = speedup(before), speedup(after)
    if not same:
        return Change(what, *texts, "", "not judged: other parameters")
    if before.parity_passed != after.parity_passed:
        mark = "improvement" if after.parity_passed else "regression: no parity any more"
        return Change(what, *texts, "", mark)
    if not before.speedup or not after.speedup:
        return Change(what, *texts)
    change = stats.change_of_ratio(before.speedup, after.speedup)
    marks = {"faster": "improvement", "slower": "regression: a smaller speed-up"}
    return Change(what, *texts, str(change), marks.get(change.verdict, ""))


def changes(before: Report, after: Report) -> list[Change]:
    """Return a line per notebook of either batch, and one per comparison present in both.

    Two comparisons of a notebook match if their number of processes and AMP level are the same.
    """
    lines = []
    for name in dict.fromkeys([*before.notebooks, *after.notebooks]):
        old, new = before.notebooks.get(name), after.notebooks.get(name)
        lines.append(_of_status(name, old, new))
        if old is None or new is None:
            continue
        for one, other in itertools.product(old.comparisons, new.comparisons):
            if (one.processes, one.amp_level) == (other.processes, other.amp_level):
                what = f"  {one.processes} process(es), {one.amp_level}"
                same = old.parameters == new.parameters
                lines.append(_of_comparison(what, one, other, same=same))
    return lines


def regressions(lines: list[Change]) -> int:
    """Return how many of the changes are regressions beyond the noise."""
    return sum(line.mark.startswith("regression") for line in lines)


def text_of_changes(before: Report, after: Report) -> str:
    """Return the changes as a table, the number of regressions, and how the machines differ."""
    lines = changes(before, after)
    rows = [["notebook", "before", "after", "after / before", ""]]
    rows += [[line.what, line.before, line.after, line.change, line.mark] for line in lines]
    said = f"{regressions(lines) or 'no'} regression(s) beyond the intervals."
    differing = [
        f"{name}: {value} → {after.machine.get(name)}"
        for name, value in before.machine.items()
        if value != after.machine.get(name)
    ]
    if differing:
        said += f"\nNot measured under the same conditions ({'; '.join(differing)})."
    return f"{text_table(rows)}\n\n{said}"
