"""Text summary of a batch: a table, and failures grouped by kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gallery_lib.console.table import duration
from gallery_lib.notebooks.batch.evidence import Status, signature
from gallery_lib.notebooks.batch.record import Record, Report
from gallery_lib.report.tables import text_table
from gallery_lib.stats import Ratio

_NOT_PASSED: tuple[Status, ...] = ("failed", "timeout", "kernel died", "out of memory", "not run")
_LOG_LINES_SHOWN = 6


def groups(report: Report) -> list[tuple[str, list[str]]]:
    """Return (signature, notebooks) of each kind of failure, the largest group first.

    Notebooks that passed or have not run are in no group.
    """
    names_by_signature: dict[str, list[str]] = {}
    for name, record in report.notebooks.items():
        if record.status not in ("passed", "not run"):
            names_by_signature.setdefault(signature(record.status, record.reason), []).append(name)
    return sorted(names_by_signature.items(), key=lambda group: (-len(group[1]), group[1]))


def speedup(comparison: Mapping[str, Any]) -> str:
    """Return `1.47× (1.44 to 1.54)`, or the verdict where there is no speed-up."""
    ratio = comparison["speedup"]
    return str(Ratio(**ratio)) if ratio else str(comparison["verdict"])


def speedups(record: Record) -> str:
    """Return the comparisons of a notebook as one table cell."""
    return "; ".join(f"{c['processes']}p {c['amp_level']} {speedup(c)}" for c in record.comparisons)


def status(record: Record) -> str:
    """Return the status, with notes on a kept result, repeated attempts and kernel restarts."""
    notes = ["kept"] if record.kept else []
    if record.attempts > 1:
        notes.append(f"attempt {record.attempts}")
    if record.kernel_starts > 1:
        notes.append(f"kernel start {record.kernel_starts}: a port was taken")
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


def text(report: Report) -> str:
    """Return the report as text for a terminal."""
    rows = [["notebook", "status", "duration", "cells", "speed-up"]]
    for name, record in report.notebooks.items():
        ran = record.date is not None
        cells = f"{record.cells_run}/{record.cells}" if ran else ""
        rows.append(
            [name, status(record), duration(record.seconds) if ran else "", cells, speedups(record)]
        )
    parts = [text_table(rows)]
    for _, names in groups(report):
        record = report.notebooks[names[0]]
        parts.append(f"{', '.join(names)}: {record.status}\n  {record.reason}")
        parts.append("\n".join(f"  | {line}" for line in record.log_tail[-_LOG_LINES_SHOWN:]))
    return "\n".join([*filter(None, parts), "", totals(report)])
