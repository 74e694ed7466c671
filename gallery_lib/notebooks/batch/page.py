"""HTML report of a batch: one self-contained page without scripts, pictures or network access.

Figures stand in tables, which become cards on a phone. Colours follow the reader's choice of light
or dark.
"""

from __future__ import annotations

import jinja2

from gallery_lib.notebooks.batch import summary
from gallery_lib.notebooks.batch.record import Report
from gallery_lib.system import hardware


def _environment() -> jinja2.Environment:
    loader = jinja2.PackageLoader("gallery_lib.notebooks.batch", package_path="")
    return jinja2.Environment(
        loader=loader,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def _machine(report: Report) -> str:
    """Return a description of the machine; its GPUs are known once a run has recorded them."""
    devices = [c["device"] for record in report.notebooks.values() for c in record.comparisons]
    return hardware.describe(
        {**report.machine, "device": next(iter(devices), "GPUs not asked about")}
    )


def html(report: Report) -> str:
    """Return the report as an HTML page."""
    template = _environment().get_template("report.html.jinja")
    return template.render(
        report=report, groups=summary.groups(report), summary=summary, machine=_machine(report)
    )
