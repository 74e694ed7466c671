"""What was measured, on whichever machine: the files in `benchmarks/results/`, and the comparisons of a batch.

Three shapes hold comparisons: that of `benchmarks/gallery.py` (a list for each notebook), that of `benchmarks/resnet50.py`
(a list of whole comparisons) and that of `gallery bench` (variants beside each other, whose own tables are shown as well).
What a file of any other shape says is shown as it stands.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gallery_lib import hardware
from gallery_lib.batch.evidence import RUNS_FOLDER
from gallery_lib.batch.measured_code import STALE
from gallery_lib.batch.record import comparisons_in, read_report
from gallery_lib.errors import InputError
from gallery_lib.measure.outcome import OURS, Bench, Outcome, read_bench
from gallery_lib.stats import Ratio

_CONDITIONS = ("date", "command", "environment", "load_average_before")
_LONGEST_LIST = 8


@dataclass(frozen=True)
class Measurement:
    """One comparison: baseline and candidate of a task, on one machine."""

    name: str  # of the notebook or task
    precision: str
    processes: int
    speedup: Ratio | None
    verdict: str
    break_even_steps: int | None
    techniques: tuple[str, ...] | None  # that the candidate used; None: not recorded
    machine: str
    date: str
    source: str  # file or batch that it is from
    told_apart: bool = False  # whether `techniques` were measured one after another: those that made it faster
    code: str | None = None  # digest of the code that was measured; None: not recorded


@dataclass(frozen=True)
class ResultFile:
    """One file of results: its conditions, its comparisons, and whatever else it says, flat."""

    name: str
    date: str
    command: str
    machine: str
    described: str
    measurements: tuple[Measurement, ...]
    others: tuple[tuple[str, str], ...]
    bench: Bench | None = None


# --------------------------------------------------------------------------------------------------------------
# Reading


def machine_name(environment: dict[str, Any]) -> str:
    """The accelerators, else the cores, without versions: `2 cores of a CPU` or `8 × a GPU`."""
    if environment.get("device", "cpu") != "cpu":
        return str(environment["device"])
    return f"{environment['cores']} cores of {environment['cpu']}"


def techniques_used(recorded: dict[str, str] | None) -> tuple[str, ...] | None:
    """Names of the techniques that a candidate's run says it used; None where a record says nothing of them."""
    if recorded is None:
        return None
    said = {name: what for name, what in recorded.items() if name not in ("graph breaks", "precision", "tuning")}
    return tuple(name for name, what in said.items() if not what.startswith(("not ", "none", "contiguous", "torch's")))


def _measurement(name: str, values: dict[str, Any], precision: str, processes: int, recorded: Any, *where: str) -> Measurement:
    machine, date, source = where
    return Measurement(
        name,
        precision,
        processes,
        Ratio(**values["speedup"]) if values["speedup"] else None,
        values["verdict"],
        values["break_even_steps"],
        techniques_used(recorded),
        machine,
        date,
        source,
    )


def _of_notebook(name: str, comparison: dict[str, Any], *where: str) -> Measurement:
    return _measurement(name, comparison, comparison["amp_level"], comparison["processes"], comparison.get("techniques"), *where)


def _of_comparison(values: dict[str, Any], *where: str) -> Measurement:
    """A whole comparison, as `comparison.json` has it."""
    before, after = list(values["variants"].values())
    levels = [variant["config"]["amp_level"] for variant in (before, after)]
    precision = levels[0] if levels[0] == levels[1] else f"{levels[0]} against {levels[1]}"
    return _measurement(values["task"], values, precision, before["world_size"], after["techniques"], *where)


def _separated(outcome: Outcome) -> tuple[str, ...]:
    """The techniques of a waterfall that made it faster than it was without them."""
    helped: list[str] = []
    before = outcome.baseline
    for name, row in outcome.rows.items():
        ratio = outcome.ratio(before, name)
        if ratio is not None and ratio.verdict == "faster":
            helped.append(name)
        before = name if row.reason is None else before
    return tuple(helped)


def _of_bench(path: Path) -> ResultFile:
    """A file of `gallery bench`: ours, or all techniques of a waterfall, against the eager one of the same precision."""
    bench = read_bench(path)
    machine = machine_name(bench.environment)
    found: list[Measurement] = []
    for name, outcome in bench.tasks.items():
        ran = [variant for variant, row in outcome.rows.items() if row.reason is None and variant != outcome.baseline]
        last = ran[-1] if bench.kind == "waterfall" and ran else OURS
        if last not in ran:
            continue
        ratio, apart = outcome.ratio(outcome.baseline, last), bench.kind == "waterfall"
        techniques = _separated(outcome) if apart else techniques_used(outcome.rows[last].techniques)
        verdict = ratio.verdict if ratio else "not comparable"
        where = machine, outcome.date[:10], path.name
        found.append(Measurement(name, bench.amp_level, 1, ratio, verdict, None, techniques, *where, told_apart=apart))
    date = max((outcome.date[:10] for outcome in bench.tasks.values()), default="no date")
    return ResultFile(path.name, date, bench.command, machine, hardware.describe(bench.environment), tuple(found), (), bench)


def _flat(values: Any, name: str = "") -> list[tuple[str, str]]:
    """Every plain value with the path that leads to it; a long list is counted."""
    if isinstance(values, dict):
        return [pair for key, value in values.items() for pair in _flat(value, f"{name} · {key}" if name else str(key))]
    if isinstance(values, list) and len(values) > _LONGEST_LIST:
        return [(name, f"{len(values)} values")]
    if isinstance(values, list):
        return [pair for number, value in enumerate(values, 1) for pair in _flat(value, f"{name} {number}")]
    return [(name, f"{values:.4g}" if isinstance(values, float) else str(values))]


def _is_comparison(value: Any) -> bool:
    return isinstance(value, dict) and {"task", "variants", "speedup", "verdict"} <= set(value)


def read_file(path: Path) -> ResultFile:
    """One file of results. Raises InputError when it does not name its conditions."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.get("kind") in ("bench", "waterfall"):
            return _of_bench(path)
        environment, date, command = content["environment"], content["date"], content["command"]
        machine = machine_name(environment)
        where = machine, date, path.name
        measurements: list[Measurement] = []
        rest = {key: value for key, value in content.items() if key not in _CONDITIONS}
        if "notebooks" in rest:
            for name, notebook in rest.pop("notebooks").items():
                dated = machine, notebook.get("date") or date, path.name
                measured = [_of_notebook(name, comparison, *dated) for comparison in notebook["comparisons"]]
                measurements += [dataclasses.replace(m, code=notebook.get("code")) for m in measured]
        elif all(map(_is_comparison, rest.get("comparisons", [None]))):
            measurements += [_of_comparison(comparison, *where) for comparison in rest.pop("comparisons")]
        return ResultFile(path.name, date, command, machine, hardware.describe(environment), tuple(measurements), tuple(_flat(rest)))
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is no file of results that can be read ({type(error).__name__}: {error}).") from None


def read_results(folder: Path) -> list[ResultFile]:
    """Return every file of results in the machines' folders of `folder`, the newest first, those of `gallery bench` behind the others."""
    found = [read_file(path) for path in sorted(folder.glob("*/*.json"))]
    return sorted(found, key=lambda file: (file.bench is None, file.date), reverse=True)


def of(files: list[ResultFile]) -> list[Measurement]:
    """The comparisons of all files."""
    return [measurement for file in files for measurement in file.measurements]


def measured_in_batch(folder: Path) -> list[Measurement]:
    """The comparisons of the notebooks that passed in the batch in `folder`."""
    report = read_report(folder)
    found = []
    for name, record in report.notebooks.items():
        if record.status != "passed" or not record.folder:
            continue
        for comparison in comparisons_in(folder / record.folder / RUNS_FOLDER):
            machine = machine_name({**report.machine, "device": comparison["device"]})
            measured = _of_notebook(name, comparison, machine, (record.date or "")[:10], "this batch")
            found.append(dataclasses.replace(measured, code=record.code))
    return found


# --------------------------------------------------------------------------------------------------------------
# Words


def speedup_text(measurement: Measurement) -> str:
    """`1.44× (1.24 to 1.59)`, or the verdict where there is no figure."""
    ratio = measurement.speedup
    return str(ratio) if ratio else measurement.verdict


def mark(measurement: Measurement, digests: Mapping[str, str]) -> str:
    """What is put behind a figure that was measured with other code than what is here; `digests` are by notebook."""
    return STALE if measurement.code != digests.get(measurement.name) else ""
