"""Report files of a batch: JSON for programs, JUnit XML for CI, HTML for people."""

from __future__ import annotations

from pathlib import Path

from gallery_lib.notebooks.batch import junit, page
from gallery_lib.notebooks.batch.record import REPORT_FILE, Report, write_report

JUNIT_FILE = "report.xml"
PAGE_FILE = "report.html"


def write(folder: Path, report: Report) -> None:
    """Write the three report files, JSON last because --resume goes by that one."""
    (folder / JUNIT_FILE).write_bytes(junit.document(report))
    (folder / PAGE_FILE).write_text(page.html(report), encoding="utf-8")
    write_report(folder, report)


def named(folder: Path) -> str:
    """Return a line that names the report files."""
    return (
        f"reports: {', '.join(str(folder / name) for name in (REPORT_FILE, JUNIT_FILE, PAGE_FILE))}"
    )
