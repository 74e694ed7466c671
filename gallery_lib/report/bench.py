"""A bench as tables, for a terminal and as Markdown, and as a picture with alternative text; needs no torch.

Speeds stand beside what the machine can do at best, measured in the same run. A variant that did not run, or that does not
compute the same training, shows its reason instead of a speed.
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from gallery_lib import hardware, stats
from gallery_lib.measure.outcome import OURS, Bench, Outcome, Row
from gallery_lib.stats import Ratio
from gallery_lib.table import Rows, markdown_table, seconds, text_table

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = "os^Dvx"


def _times(ratio: Ratio | None) -> str:
    return "" if ratio is None else str(ratio)


def _gibibytes(row: Row) -> str:
    value = row.peak_memory_bytes.get("device") or row.peak_memory_bytes.get("host")
    return "" if value is None else f"{value / 2**30:.2f} GiB"


def _rate(value: float | None, limit: float) -> str:
    """In units of 10⁹ a second, and as a part of the limit."""
    return "" if value is None else f"{value / 1e9:.3g} ({value / limit:.0%})"


def _parity(row: Row) -> str:
    if row.parity is None:
        return "baseline"
    return "passed" if row.parity["passed"] else "FAILED: " + ", ".join(c["name"] for c in row.parity["checks"] if not c["passed"])


def _reason(row: Row) -> str:
    return f"did not run: {row.reason}" if not str(row.reason).startswith(("not installed", "does not apply")) else str(row.reason)


def task_rows(outcome: Outcome, kind: str) -> Rows:
    """One task: a line for each variant, or for each technique added."""
    second = "over the row above" if kind == "waterfall" else "ours over it"
    rows = [["+ technique" if kind == "waterfall" else "variant", "step", "samples/s", "whole run", "start-up", "peak memory"]]
    baseline = outcome.baseline
    rows[0] += [f"over {baseline}", second, "GFLOP/s (of limit)", "GB/s (of limit)", "parity"]
    products = max((rate for name, rate in outcome.limits.items() if name != "copy"), default=0.0)
    before = baseline
    for name, row in outcome.rows.items():
        shown = f"+ {name}" if kind == "waterfall" and name != baseline else name
        if row.reason is not None:
            rows.append([shown, *[""] * 9, _reason(row)])
            continue
        other = outcome.ratio(before, name) if kind == "waterfall" and before != baseline else outcome.ratio(name, OURS)
        rows.append(
            [
                shown,
                seconds(row.step_seconds["p50"]),
                f"{row.samples_per_second['global']:.1f}",
                f"{row.samples_per_second['whole_run']:.1f}",
                f"{row.startup_seconds['total']:.1f} s",
                _gibibytes(row),
                _times(outcome.ratio(baseline, name)),
                _times(other),
                _rate(row.flops_per_second, products),
                _rate(row.bytes_per_second, outcome.limits["copy"]),
                _parity(row),
            ]
        )
        before = name
    return rows


def limits_line(outcome: Outcome) -> str:
    """What the machine reached, in the same run."""
    products = ", ".join(f"{rate / 1e9:.0f} GFLOP/s in {name}" for name, rate in outcome.limits.items() if name != "copy")
    return f"Limits of the machine, measured just before: matrix products {products}; copying {outcome.limits['copy'] / 1e9:.1f} GB/s."


def compared_with(bench: Bench) -> list[str]:
    """The variants that ours is held against."""
    names = dict.fromkeys(name for outcome in bench.tasks.values() for name in outcome.rows)
    return [name for name in names if name != OURS]


def mean_over_tasks(bench: Bench, other: str) -> tuple[Ratio | None, list[str]]:
    """The geometric mean of how many times as fast ours is as `other`, and the tasks that are left out of it."""
    found = {name: outcome.ratio(other, OURS) for name, outcome in bench.tasks.items()}
    ratios = [ratio for ratio in found.values() if ratio is not None]
    return (stats.geometric_mean(ratios) if ratios else None), [name for name, ratio in found.items() if ratio is None]


def _instead(outcome: Outcome, other: str) -> str:
    """Why there is no ratio of ours to `other`."""
    for name in (OURS, other):
        row = outcome.rows.get(name)
        if row is None:
            return "not asked for"
        if row.reason is not None:
            return _reason(row).partition(":")[0] + f" ({name})"
        if not row.comparable:
            return f"no parity ({name})"
    return "not measured"


def summary_rows(bench: Bench) -> Rows:
    """Ours over every other variant, a line for each task and one for their geometric mean."""
    others = compared_with(bench)
    rows = [["task", *(f"ours over {name}" for name in others)]]
    for name, outcome in bench.tasks.items():
        ratios = [outcome.ratio(other, OURS) for other in others]
        cells = [_times(r) if r else _instead(outcome, other) for r, other in zip(ratios, others, strict=True)]
        rows.append([name, *cells])
    means = []
    for other in others:
        mean, left_out = mean_over_tasks(bench, other)
        means.append(f"{_times(mean) or 'none'}, {len(bench.tasks) - len(left_out)} of {len(bench.tasks)} tasks")
    return [*rows, ["geometric mean", *means]]


def notes(bench: Bench) -> list[str]:
    """How the figures are to be read."""
    versions = ", ".join(f"{name} {number}" for name, number in bench.versions.items() if number != "not installed")
    found = [f"{hardware.describe(bench.environment)}. Versions: {versions}. Command: `{bench.command}`."]
    found.append(
        "Variants of a task took turns. Intervals are of steady-state steps (bootstrap over turns); `whole run` counts start-up as well. "
        "GB/s: bytes that eager operators move, over this variant's time; what fuses them moves less and may exceed the limit."
    )
    if bench.kind == "bench":
        given = "a fused one in every variant" if bench.options["fused"] else "torch's as it comes; ours: a fused one (--fused: for all)"
        found.append(f"Optimizer: {given}.")
        found.append(
            f"Parity is with {bench.baseline}, held against float64. Two variants have a ratio where both pass, or, where one of them does "
            "not, if they compute the same training as one another."
        )
    return found


def _parts(bench: Bench, table: Any, heading: str) -> list[str]:
    parts = []
    for name, outcome in bench.tasks.items():
        sizes = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in outcome.sizes.items())
        parts.append(f"{heading}{name}: {sizes}" if sizes else f"{heading}{name}")
        if outcome.reason is not None:
            parts.append(f"Not measured: {outcome.reason}")
            continue
        parts += [table(task_rows(outcome, bench.kind)), limits_line(outcome)]
    if bench.kind == "bench" and any(OURS in outcome.rows for outcome in bench.tasks.values()):
        parts += [f"{heading}ours beside the others", table(summary_rows(bench))]
    return [*parts, *notes(bench)]


def text(bench: Bench) -> str:
    """For a terminal."""
    return "\n\n".join(_parts(bench, text_table, ""))


def markdown_tables(bench: Bench, heading: str = "## ") -> str:
    """The tables as Markdown, each under a heading that begins so."""
    return "\n\n".join(_parts(bench, markdown_table, heading))


def markdown(bench: Bench, picture: str) -> str:
    """For a file beside the picture."""
    return "\n\n".join([f"# gallery {bench.kind}", f"![{figure_text(bench)}]({picture})", markdown_tables(bench)]) + "\n"


def _points(bench: Bench) -> tuple[list[str], list[tuple[str, list[Ratio | None]]]]:
    """Names on the axis, and for each series its ratio over the baseline at each of them."""
    if bench.kind == "waterfall":
        outcome = next(iter(bench.tasks.values()))
        names = [name for name in outcome.rows if name != outcome.baseline]
        return [f"+ {name}" for name in names], [("", [outcome.ratio(outcome.baseline, name) for name in names])]
    variants = dict.fromkeys(v for outcome in bench.tasks.values() for v in outcome.rows if v != bench.baseline)
    return list(bench.tasks), [(v, [outcome.ratio(bench.baseline, v) for outcome in bench.tasks.values()]) for v in variants]


def figure(bench: Bench) -> Figure:
    """How many times as fast as the baseline, with intervals; what has no ratio is left out."""
    names, series = _points(bench)
    plot = Figure(figsize=(8.0, 1.6 + 0.5 * len(names)), layout="constrained")
    axes = plot.subplots()
    for number, (label, ratios) in enumerate(series):
        height = 0.12 * (number - (len(series) - 1) / 2)
        shown = [(y + height, r) for y, r in enumerate(ratios) if r is not None]
        axes.errorbar(
            [r.ratio for _, r in shown],
            [y for y, _ in shown],
            xerr=[[r.ratio - r.low for _, r in shown], [r.high - r.ratio for _, r in shown]],
            linestyle="",
            marker=_MARKERS[number % len(_MARKERS)],
            color=_COLOURS[number % len(_COLOURS)],
            label=label,
            capsize=2,
        )
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set(xlabel=f"times as fast as {bench.baseline}", title="Steady-state speed, with intervals")
    axes.grid(axis="x", alpha=0.3)
    if len(series) > 1:
        axes.legend(fontsize="small")
    return plot


def figure_text(bench: Bench) -> str:
    """Alternative text of `figure`."""
    names, series = _points(bench)
    parts = []
    for label, ratios in series:
        values = ", ".join(f"{name} {r.ratio:.2f}" if r else f"{name} not measured" for name, r in zip(names, ratios, strict=True))
        parts.append(f"{label}: {values}" if label else values)
    return f"Points with intervals, times as fast as {bench.baseline}. " + "; ".join(parts) + "."


def complete(bench: Bench) -> bool:
    """Whether every task was measured, and ours (or every technique that applies) ran with parity."""
    for outcome in bench.tasks.values():
        rows = outcome.rows if bench.kind == "waterfall" else {OURS: outcome.rows[OURS]} if OURS in outcome.rows else {}
        applied = [row for row in rows.values() if not str(row.reason).startswith("does not apply")]
        if outcome.reason is not None or not all(row.comparable for row in applied):
            return False
    return True
