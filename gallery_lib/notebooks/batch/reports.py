"""Reports of a batch: text for a terminal, JSON for programs, JUnit XML for CI, HTML for people.

The HTML page is self-contained, without scripts, pictures or network access. In the XML, `failed`
is a failure, `not run` is skipped, and everything else that did not pass is an error.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from xml.etree import ElementTree

import jinja2

from gallery_lib.console.text import duration, text_columns, text_table, visible
from gallery_lib.errors import InputError
from gallery_lib.measure.comparison.result import read_comparison
from gallery_lib.notebooks.batch.evidence import LOG_FILE, RUNS_FOLDER
from gallery_lib.notebooks.batch.record import REPORT_FILE, Compared, Record, Report, write_report
from gallery_lib.report import verdict
from gallery_lib.system import hardware

JUNIT_FILE = "report.xml"
PAGE_FILE = "report.html"
_ELEMENTS = {"failed": "failure", "not run": "skipped"}
_LOG_LINES_SHOWN = 6


def write(folder: Path, report: Report) -> None:
    """Write the three report files, JSON last because --resume goes by that one."""
    (folder / JUNIT_FILE).write_bytes(junit(report))
    (folder / PAGE_FILE).write_text(html(report), encoding="utf-8")
    write_report(folder, report)


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
        loader=jinja2.PackageLoader("gallery_lib.notebooks.batch", package_path=""),
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
