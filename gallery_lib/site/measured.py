"""What was measured, on whichever machine: the files in `benchmarks/results/`, and the comparisons of a batch.

Two shapes hold comparisons: that of `benchmarks/gallery.py` (a list for each notebook) and that of `benchmarks/resnet50.py`
(a list of whole comparisons). What a file of any other shape says is shown as it stands.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gallery_lib import hardware
from gallery_lib.batch.evidence import RUNS_FOLDER
from gallery_lib.batch.record import comparisons_in, read_report
from gallery_lib.errors import InputError
from gallery_lib.stats import Ratio
from gallery_lib.table import Rows, markdown_table

FIGURE = "speedups.png"
_CONDITIONS = ("date", "command", "environment", "load_average_before")
_LONGEST_LIST = 8
_HEAD = """# Results across machines

Speed-up: median step time of PyTorch eager (the baseline) over that of the accelerated backend at the same precision, both alive at
the same time and taking turns, with its interval. Where parity failed there is no speed-up. {doc}`guides/numbers` says how to
read them. A figure holds for its machine; what no file below names, any GPU for one, **has not been measured**.
"""


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
    off = ("not applied", "none", "contiguous")
    return tuple(name for name, what in recorded.items() if name != "graph breaks" and not what.startswith(off))


def _measurement(name: str, values: dict[str, Any], precision: str, processes: int, recorded: Any, *where: str) -> Measurement:
    return Measurement(
        name,
        precision,
        processes,
        Ratio(**values["speedup"]) if values["speedup"] else None,
        values["verdict"],
        values["break_even_steps"],
        techniques_used(recorded),
        *where,
    )


def _of_notebook(name: str, comparison: dict[str, Any], *where: str) -> Measurement:
    return _measurement(name, comparison, comparison["amp_level"], comparison["processes"], comparison.get("techniques"), *where)


def _of_comparison(values: dict[str, Any], *where: str) -> Measurement:
    """A whole comparison, as `comparison.json` has it."""
    before, after = list(values["variants"].values())
    levels = [variant["config"]["amp_level"] for variant in (before, after)]
    precision = levels[0] if levels[0] == levels[1] else f"{levels[0]} against {levels[1]}"
    return _measurement(values["task"], values, precision, before["world_size"], after["techniques"], *where)


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
        environment, date, command = content["environment"], content["date"], content["command"]
        machine = machine_name(environment)
        where = machine, date, path.name
        measurements: list[Measurement] = []
        rest = {key: value for key, value in content.items() if key not in _CONDITIONS}
        if "notebooks" in rest:
            for name, notebook in rest.pop("notebooks").items():
                dated = machine, notebook.get("date") or date, path.name
                measurements += [_of_notebook(name, comparison, *dated) for comparison in notebook["comparisons"]]
        elif all(map(_is_comparison, rest.get("comparisons", [None]))):
            measurements += [_of_comparison(comparison, *where) for comparison in rest.pop("comparisons")]
        return ResultFile(path.name, date, command, machine, hardware.describe(environment), tuple(measurements), tuple(_flat(rest)))
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is no file of results that can be read ({type(error).__name__}: {error}).") from None


def read_results(folder: Path) -> list[ResultFile]:
    """Every file of results in `folder`, the newest first."""
    return sorted((read_file(path) for path in sorted(folder.glob("*.json"))), key=lambda file: file.date, reverse=True)


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
            found.append(_of_notebook(name, comparison, machine, (record.date or "")[:10], "this batch"))
    return found


# --------------------------------------------------------------------------------------------------------------
# Showing


def speedup_text(measurement: Measurement) -> str:
    """`1.44× (1.24 to 1.59)`, or the verdict where there is no figure."""
    ratio = measurement.speedup
    return f"{ratio.ratio:.2f}× ({ratio.low:.2f} to {ratio.high:.2f})" if ratio else measurement.verdict


def rows(measurements: list[Measurement]) -> Rows:
    """A line each, under a header."""
    header = ["notebook or task", "precision", "processes", "speed-up (interval)", "break-even", "machine", "measured", "file"]
    body = [
        [
            m.name,
            m.precision,
            str(m.processes),
            speedup_text(m),
            f"{m.break_even_steps} steps" if m.break_even_steps is not None else "—",
            m.machine,
            m.date,
            m.source,
        ]
        for m in measurements
    ]
    return [header, *body]


def _label(measurement: Measurement) -> str:
    return f"{measurement.name}, {measurement.precision}, {measurement.processes}p"


def figure_text(measurements: list[Measurement]) -> str:
    """Alternative text of `draw`."""
    shown = [m for m in measurements if m.speedup]
    machines = len({m.machine for m in shown})
    ordered = sorted(shown, key=lambda m: m.speedup.ratio if m.speedup else 0)
    ends = " to ".join(f"{speedup_text(m)} ({_label(m)})" for m in (ordered[0], ordered[-1]))
    return (
        f"Dot plot of {len(shown)} speed-ups with their intervals, on {machines} machine(s): from {ends}. The table below has every figure."
    )


def draw(measurements: list[Measurement], path: Path) -> None:
    """Every speed-up with its interval, a colour and a marker for each machine, beside the line of no difference."""
    from matplotlib.figure import Figure

    from gallery_lib.report.plots import COLOURS

    shown = [m for m in measurements if m.speedup]
    labels = list(dict.fromkeys(map(_label, shown)))
    machines = list(dict.fromkeys(m.machine for m in shown))
    figure = Figure(figsize=(7.0, 1.6 + 0.3 * len(labels)), layout="constrained")
    axes = figure.subplots()
    for number, machine in enumerate(machines):
        own = [(m.speedup, labels.index(_label(m)) + 0.15 * number) for m in shown if m.machine == machine and m.speedup]
        ratios, heights = [s.ratio for s, _ in own], [height for _, height in own]
        errors = [[s.ratio - s.low for s, _ in own], [s.high - s.ratio for s, _ in own]]
        marker, colour = "osD^v"[number % 5], COLOURS[number % len(COLOURS)]
        axes.errorbar(ratios, heights, xerr=errors, fmt=marker, color=colour, capsize=3, label=machine)
    axes.axvline(1.0, color="black", linewidth=1, linestyle=":")
    axes.set(xlabel="speed-up of the accelerated backend over PyTorch eager", yticks=range(len(labels)), yticklabels=labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)  # the first at the top
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside upper center", frameon=False)
    figure.savefig(path, dpi=110)


def _file_section(file: ResultFile) -> str:
    parts = [f"## {file.name}", f"{file.described}. Measured on {file.date} with `{file.command}`."]
    if file.measurements:
        parts.append(f"{len(file.measurements)} comparison(s), in the table above.")
    if file.others:
        parts.append(markdown_table([["figure", "value"], *([name, f"`{value}`"] for name, value in file.others)]))
    return "\n\n".join(parts)


def write_pages(files: list[ResultFile], folder: Path) -> None:
    """`results.md` in `folder`, with its figure."""
    found = of(files)
    parts = [_HEAD]
    if any(measurement.speedup for measurement in found):
        draw(found, folder / FIGURE)
        parts.append(f"![{figure_text(found)}]({FIGURE})")
    parts.append(markdown_table(rows(found)) if found else "Nothing has been measured yet: `benchmarks/results/` holds no comparison.")
    parts += [_file_section(file) for file in files]
    (folder / "results.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
