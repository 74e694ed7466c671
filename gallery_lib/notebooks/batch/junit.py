"""JUnit XML report of a batch, for continuous integration: one test case per notebook.

`failed` is a failure; `timeout`, `kernel died` and `out of memory` are errors; `not run` is
skipped.
"""

from __future__ import annotations

from xml.etree import ElementTree

from gallery_lib.notebooks.batch.record import Report

_ELEMENTS = {
    "failed": "failure",
    "timeout": "error",
    "kernel died": "error",
    "out of memory": "error",
    "not run": "skipped",
}


def document(report: Report) -> bytes:
    """Return the report as JUnit XML in UTF-8."""
    counts = {
        "tests": len(report.notebooks),
        "failures": report.count("failed"),
        "errors": report.count("timeout")
        + report.count("kernel died")
        + report.count("out of memory"),
        "skipped": report.count("not run"),
    }
    attributes = {
        "name": "gallery",
        "time": f"{report.seconds:.1f}",
        **{name: str(count) for name, count in counts.items()},
    }
    suites = ElementTree.Element("testsuites", attributes)
    suite = ElementTree.SubElement(
        suites, "testsuite", {**attributes, "timestamp": report.began[:19]}
    )
    for name, record in report.notebooks.items():
        case = ElementTree.SubElement(
            suite,
            "testcase",
            {"classname": "notebooks", "name": name, "time": f"{record.seconds:.1f}"},
        )
        if record.status in _ELEMENTS:
            element = ElementTree.SubElement(
                case,
                _ELEMENTS[record.status],
                {"message": record.reason or "", "type": record.status},
            )
            if record.log_tail:
                element.text = "\n".join(record.log_tail)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)
