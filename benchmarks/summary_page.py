"""Page across machines: a line for each, and the geometric means of its benches."""

from __future__ import annotations

from collections.abc import Sequence

import bench_summary
from bench_summary import Run, runs_of
from published import Machine, days

from gallery_lib.console.table import Rows, markdown_table
from gallery_lib.measure.bench.result import EAGER

_INTRODUCTION = (
    "# Results across machines\n\n"
    "What was measured on which machine, made from the raw files in the machines' folders. *Ours*: "
    "the accelerated backend. A ratio says how\nmany times as fast ours is, with its 99 % "
    "interval: median step times of variants that took turns, where both compute the same "
    "training\n(parity). A mean is geometric, over tasks. *Small inputs*: each task's `quick` "
    "size. *Large inputs*: 224² pixels, 128 tokens or 50\nframes. Machines' pages name the sizes. "
    "*At its best*: with a fused optimizer, the same allocator settings, and what else a user "
    "could\ntune by hand.\n\n"
    "A figure holds for its machine and for the code of its date. What no page names, any GPU for "
    "one, **has not been measured**. How far\ncomparisons can be believed, and what else was "
    "found: [notes](../notes/README.md)."
)
_PRECISIONS = {"O0": "O0 (fp32)", "O1": "O1 (autocast)"}


def summary_page(machines: Sequence[Machine]) -> str:
    """Return the page across machines."""
    parts = [
        _INTRODUCTION,
        "## Machines",
        markdown_table(_at_a_glance(machines)),
        "Over eager at the same precision; where a size was measured several times, run by run.",
    ]
    for machine in machines:
        if runs := runs_of(machine):
            parts += [
                f"## {machine.name}",
                markdown_table(bench_summary.means_rows(runs)),
                *_not_measured(runs),
                f"Task by task, and what else was measured there: {machine.link}.",
            ]
    return "\n\n".join(parts) + "\n"


def _at_a_glance(machines: Sequence[Machine]) -> Rows:
    rows = [
        [
            "machine",
            "CPU or GPU",
            "precision",
            "tasks",
            "measured",
            "small inputs: over eager",
            "large inputs: over eager",
        ]
    ]
    for machine in machines:
        runs = runs_of(machine)
        cells = []
        for size in bench_summary.SIZES:
            means = [bench_summary.mean_text(run, run.baseline) for run in runs if run.size == size]
            cells.append("; ".join(means) or "not measured")
        precisions = ", ".join(dict.fromkeys(_PRECISIONS[run.precision] for run in runs)) or "–"
        tasks = len({name for run in runs for name in run.tasks})
        conditions = [machine.hardware, precisions, str(tasks or "–"), days(machine.files)]
        rows.append([machine.link, *conditions, *cells])
    return rows


def _not_measured(runs: Sequence[Run]) -> list[str]:
    """Return a line with the sizes and alternatives that no run has, if there are any."""
    missing = [
        f"{size} inputs"
        for size in bench_summary.SIZES
        if not any(run.size == size for run in runs)
    ]
    if not any(other not in EAGER.values() for run in runs for other in run.others):
        missing.append("peers")
    return [f"Not measured there: {', '.join(missing)}."] if missing else []
