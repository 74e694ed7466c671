"""Reports of a batch: JSON for programs, JUnit XML for continuous integration, HTML for people.

The HTML page is self-contained, without scripts, pictures or network access. In the XML, `failed`
is a failure, `not run` is skipped, and everything else that did not pass is an error. Each executed
notebook gets a page for a browser, too.
"""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import jinja2

from gallery_lib.console.progress import note
from gallery_lib.console.visible import visible
from gallery_lib.notebooks.batch import summary
from gallery_lib.notebooks.batch.record import REPORT_FILE, Report, write_report
from gallery_lib.system import hardware

JUNIT_FILE = "report.xml"
PAGE_FILE = "report.html"
_ELEMENTS = {"failed": "failure", "not run": "skipped"}


def write(folder: Path, report: Report) -> None:
    """Write the three report files, JSON last because --resume goes by that one."""
    (folder / JUNIT_FILE).write_bytes(junit(report))
    (folder / PAGE_FILE).write_text(html(report), encoding="utf-8")
    write_report(folder, report)


def named(folder: Path) -> str:
    """Return a line that names the report files."""
    return (
        f"reports: {', '.join(str(folder / name) for name in (REPORT_FILE, JUNIT_FILE, PAGE_FILE))}"
    )


def junit(report: Report) -> bytes:
    """Return the report as JUnit XML in UTF-8, with a test case for each notebook."""
    failures, skipped = report.count("failed"), report.count("not run")
    errors = len(report.notebooks) - report.count("passed") - failures - skipped
    attributes = {
        "name": "gallery",
        "time": f"{report.seconds:.1f}",
        "tests": str(len(report.notebooks)),
        "failures": str(failures),
        "errors": str(errors),
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
    text = ElementTree.tostring(suites, encoding="unicode", xml_declaration=True)
    return visible(text).encode()  # XML has no control characters


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
    devices = [c["device"] for record in report.notebooks.values() for c in record.comparisons]
    machine = hardware.describe(
        {**report.machine, "device": next(iter(devices), "GPUs not asked about")}
    )
    page = environment.get_template("report.html.jinja").render(
        report=report, summary=summary, machine=machine
    )
    return visible(page)


def write_notebook_page(executed: Path) -> None:
    """Write an executed notebook with its outputs as a page beside it.

    Scripts for formulas and widgets, which a browser would have to fetch, are left out. Where
    nbconvert lacks its templates (an environment that was put together by hand), a line says so.
    """
    from nbconvert import HTMLExporter  # takes a second

    try:
        exporter = HTMLExporter(mathjax_url="", require_js_url="")
        text, _ = exporter.from_filename(str(executed))
    except ValueError as error:
        note(f"{executed.name} gets no page for a browser: {str(error).splitlines()[0]}")
        return
    executed.with_suffix(".html").write_text(text, encoding="utf-8")
