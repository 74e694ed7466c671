"""Text summary of a batch: a table and what went wrong, or of one notebook its answer."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gallery_lib.console.table import duration, text_columns
from gallery_lib.errors import InputError
from gallery_lib.measure.comparison.result import read_comparison
from gallery_lib.notebooks.batch.evidence import LOG_FILE, RUNS_FOLDER, Status
from gallery_lib.notebooks.batch.record import Record, Report
from gallery_lib.report import verdict
from gallery_lib.report.tables import text_table
from gallery_lib.stats import Ratio

_NOT_PASSED: tuple[Status, ...] = ("failed", "timeout", "kernel died", "out of memory", "not run")
_LOG_LINES_SHOWN = 6


def failed(report: Report) -> list[str]:
    """Return the notebooks that ran and did not pass."""
    return [
        name
        for name, record in report.notebooks.items()
        if record.status not in ("passed", "not run")
    ]


def speedup(comparison: Mapping[str, Any]) -> str:
    """Return `1.47× (1.44 to 1.54)`, or the verdict where there is no speed-up."""
    ratio = comparison["speedup"]
    return str(Ratio(**ratio)) if ratio else str(comparison["verdict"])


def speedups(record: Record) -> str:
    """Return the comparisons of a notebook as one table cell."""
    return "; ".join(f"{c['processes']}p {c['amp_level']} {speedup(c)}" for c in record.comparisons)


def status(record: Record) -> str:
    """Return the status, with notes on a kept result and repeated attempts."""
    notes = ["kept"] if record.kept else []
    if record.attempts > 1:
        notes.append(f"attempt {record.attempts}")
    return record.status + (f" ({', '.join(notes)})" if notes else "")


def totals(report: Report) -> str:
    """Return the totals of a batch as a sentence.

    For example: `11 of 13 passed; 1 failed, 1 timeout, in 12 min 3 s.`
    """
    others = ", ".join(
        f"{n} {kind}"
        for kind in ("failed", "timeout", "kernel died", "out of memory", "not run")
        if (n := report.count(kind))
    )
    interrupted = f", interrupted by {report.interrupted_by}" if report.interrupted_by else ""
    passed = f"{report.count('passed')} of {len(report.notebooks)} passed"
    return f"{passed}{'; ' + others if others else ''}{interrupted}, in {duration(report.seconds)}."


def text(report: Report, folder: Path) -> str:
    """Return the report of the batch in `folder` as text for a terminal."""
    if len(report.notebooks) == 1:
        ((name, record),) = report.notebooks.items()
        return "\n".join(_one_notebook(name, record, folder / (record.folder or "")))
    rows = [["notebook", "status", "duration", "cells", "speed-up"]]
    for name, record in report.notebooks.items():
        ran = record.date is not None
        cells = f"{record.cells_run}/{record.cells}" if ran else ""
        rows.append(
            [name, status(record), duration(record.seconds) if ran else "", cells, speedups(record)]
        )
    parts = [text_table(rows)]
    for name in failed(report):
        record = report.notebooks[name]
        parts.append(f"{name}: {record.status}\n  {record.reason}")
        parts.append("\n".join(f"  | {line}" for line in _shown_log(record)))
    return "\n".join([*filter(None, parts), "", totals(report)])


def _one_notebook(name: str, record: Record, folder: Path) -> list[str]:
    """Return how the notebook ended, what it measured, and where to read more, a line each."""
    ended = f"{name}: {status(record)}"
    if record.date is not None:
        ended += f", {record.cells_run} of {record.cells} code cells in {duration(record.seconds)}"
    if record.status != "passed":
        ended += f"\n  {record.reason}"
    lines = [ended, *(f"  | {line}" for line in _shown_log(record))]
    for path in sorted((folder / RUNS_FOLDER).rglob("comparison.json")):
        with contextlib.suppress(InputError):  # a damaged one is the reason above
            lines += ["", *verdict.lines(read_comparison(path.parent))]
    files = {
        "notebook": folder / f"{name}.ipynb",
        "as a page": folder / f"{name}.html",
        "log": folder / LOG_FILE,
    }
    rows = [[f"{what}:", str(file)] for what, file in files.items() if file.exists()]
    return [*lines, *([""] if rows else []), *text_columns(rows)]


def _shown_log(record: Record) -> list[str]:
    return record.log_tail[-_LOG_LINES_SHOWN:] if record.status in _NOT_PASSED else []
