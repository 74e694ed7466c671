"""Measurements from any machine: files in `benchmarks/results/`, and the comparisons of a batch.

Three file formats hold comparisons. `benchmarks/gallery.py` writes a list for each notebook,
`benchmarks/resnet50.py` a list of whole comparisons, and `gallery bench` variants beside each
other. A file of any other format holds none.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gallery_lib.errors import InputError
from gallery_lib.measure.bench.result import OURS, Bench, Outcome, read_bench
from gallery_lib.notebooks.batch.evidence import RUNS_FOLDER
from gallery_lib.notebooks.batch.measured_code import STALE
from gallery_lib.notebooks.batch.record import comparisons_in, read_report
from gallery_lib.stats import Ratio
from gallery_lib.system.hardware import machine_name


@dataclass(frozen=True)
class Measurement:
    """One comparison of a task's baseline and candidate on one machine."""

    name: str  # of the notebook or task
    precision: str
    processes: int
    speedup: Ratio | None
    verdict: str
    techniques: tuple[str, ...] | None  # that the candidate used; None: not recorded
    machine: str
    # Whether techniques were measured one by one; `techniques` are then those that made it faster.
    told_apart: bool = False
    code: str | None = None  # digest of the code that was measured; None: not recorded
    date: str = ""


# --------------------------------------------------------------------------------------------------
# Reading


def techniques_used(recorded: dict[str, str] | None) -> tuple[str, ...] | None:
    """Return the techniques that a candidate's run says it used.

    Returns None where a record says nothing about techniques.
    """
    if recorded is None:
        return None
    descriptions = {
        name: what
        for name, what in recorded.items()
        if name not in ("graph breaks", "precision", "tuning")
    }
    return tuple(
        name
        for name, what in descriptions.items()
        if not what.startswith(("not ", "none", "contiguous", "torch's"))
    )


def _measurement(
    name: str, values: dict[str, Any], precision: str, processes: int, recorded: Any, machine: str
) -> Measurement:
    speedup = Ratio(**values["speedup"]) if values["speedup"] else None
    return Measurement(
        name, precision, processes, speedup, values["verdict"], techniques_used(recorded), machine
    )


def _of_notebook(
    name: str, comparison: dict[str, Any], machine: str, code: str | None
) -> Measurement:
    measured = _measurement(
        name,
        comparison,
        comparison["amp_level"],
        comparison["processes"],
        comparison.get("techniques"),
        machine,
    )
    return dataclasses.replace(measured, code=code)


def _of_comparison(values: dict[str, Any], machine: str) -> Measurement:
    """Return the measurement of a whole comparison, in the form of `comparison.json`."""
    before, after = list(values["variants"].values())
    levels = [variant["config"]["amp_level"] for variant in (before, after)]
    precision = levels[0] if levels[0] == levels[1] else f"{levels[0]} against {levels[1]}"
    return _measurement(
        values["task"], values, precision, before["world_size"], after["techniques"], machine
    )


def _separated(outcome: Outcome) -> tuple[str, ...]:
    """Return the techniques that made a waterfall faster than it was without them."""
    helped: list[str] = []
    before = outcome.baseline
    for name, row in outcome.rows.items():
        ratio = outcome.ratio(before, name)
        if ratio is not None and ratio.verdict == "faster":
            helped.append(name)
        before = name if row.reason is None else before
    return tuple(helped)


def _of_bench(bench: Bench) -> list[Measurement]:
    """Return one measurement per task, over eager PyTorch in the same precision.

    The candidate is ours or, in a waterfall, the variant with all techniques.
    """
    machine = machine_name(bench.environment)
    measurements: list[Measurement] = []
    for name, outcome in bench.tasks.items():
        ran = [
            variant
            for variant, row in outcome.rows.items()
            if row.reason is None and variant != outcome.baseline
        ]
        last = ran[-1] if bench.kind == "waterfall" and ran else OURS
        if last not in ran:
            continue
        ratio, apart = outcome.ratio(outcome.baseline, last), bench.kind == "waterfall"
        techniques = (
            _separated(outcome) if apart else techniques_used(outcome.rows[last].techniques)
        )
        verdict = ratio.verdict if ratio else "not comparable"
        measurements.append(
            Measurement(
                name, bench.amp_level, 1, ratio, verdict, techniques, machine, told_apart=apart
            )
        )
    return measurements


def _is_comparison(value: Any) -> bool:
    return isinstance(value, dict) and {"task", "variants", "speedup", "verdict"} <= set(value)


def _read(path: Path) -> tuple[tuple[bool, str], list[Measurement]]:
    """Return the sort key and the comparisons of one file.

    The sort key is whether the file is no bench, and its date.

    Raises:
        InputError: for an unreadable file.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.get("kind") in ("bench", "waterfall"):
            bench = read_bench(path)
            date = max((outcome.date for outcome in bench.tasks.values()), default="")
            return (False, date), [
                dataclasses.replace(measurement, date=date) for measurement in _of_bench(bench)
            ]
        machine, date = machine_name(content["environment"]), content["date"]
        if "notebooks" in content:
            runs = content["notebooks"].items()
            measurements = [
                _of_notebook(name, comparison, machine, run.get("code"))
                for name, run in runs
                for comparison in run["comparisons"]
            ]
        else:
            measurements = [
                _of_comparison(comparison, machine)
                for comparison in filter(_is_comparison, content.get("comparisons", []))
            ]
        return (True, date), [
            dataclasses.replace(measurement, date=date) for measurement in measurements
        ]
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} is no file of results that can be read ({type(error).__name__}: {error}).",
            parameter=str(path),
        ) from None


def read_results(folder: Path) -> list[Measurement]:
    """Return every comparison in the machines' folders of `folder`, the newest first.

    Comparisons of `gallery bench` stand behind the others.

    Raises:
        InputError: for a file that does not name its conditions.
    """
    files = sorted(
        map(_read, sorted(folder.glob("*/*.json"))), key=lambda file: file[0], reverse=True
    )
    return [measurement for _, measurements in files for measurement in measurements]


def measured_in_batch(folder: Path) -> list[Measurement]:
    """Return the comparisons of the notebooks that passed in the batch in `folder`."""
    report = read_report(folder)
    measurements = []
    for name, record in report.notebooks.items():
        if record.status != "passed" or not record.folder:
            continue
        for comparison in comparisons_in(folder / record.folder / RUNS_FOLDER):
            machine = machine_name({**report.machine, "device": comparison["device"]})
            measurements.append(_of_notebook(name, comparison, machine, record.code))
    return measurements


# --------------------------------------------------------------------------------------------------
# Texts


def speedup_text(measurement: Measurement) -> str:
    """Return `1.44× (1.24 to 1.59)`, or the verdict where there is no figure."""
    ratio = measurement.speedup
    return str(ratio) if ratio else measurement.verdict


def mark(measurement: Measurement, digests: Mapping[str, str]) -> str:
    """Return the mark of a figure that was measured with other code than the present, else ''.

    `digests` names the present code by notebook.
    """
    return STALE if measurement.code != digests.get(measurement.name) else ""
