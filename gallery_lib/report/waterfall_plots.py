"""Bars of a waterfall: how fast a step is with one technique after another."""

from __future__ import annotations

from matplotlib.figure import Figure

from gallery_lib.console.table import Rows, seconds
from gallery_lib.measure.bench.result import Bench, Outcome
from gallery_lib.report.bench.task_table import ratio_text
from gallery_lib.report.plots import COLOURS
from gallery_lib.stats import Ratio


def _outcome(bench: Bench) -> Outcome:
    return next(iter(bench.tasks.values()))


def _ratios(bench: Bench) -> dict[str, Ratio | None]:
    """Return how many times as fast as the baseline each row is; None where it did not run."""
    outcome = _outcome(bench)
    return {
        name: outcome.ratio(outcome.baseline, name)
        for name in outcome.rows
        if name != bench.baseline
    }


def _steps(bench: Bench) -> dict[str, Ratio]:
    """Return how many times as fast each row is as the row before it, of those measured."""
    outcome, steps, before = _outcome(bench), {}, bench.baseline
    for name, ratio in _ratios(bench).items():
        if ratio is not None and (step := outcome.ratio(before, name)) is not None:
            steps[name], before = step, name
    return steps


def title(bench: Bench) -> str:
    """Return what the bars say: which technique certainly gains most, and what all gain."""
    measured = [ratio for ratio in _ratios(bench).values() if ratio is not None]
    steps = _steps(bench)
    if not measured or not steps:
        return "No technique could be compared with the baseline"
    together = f"all together {measured[-1].ratio:.2f}× as fast as {bench.baseline}"
    certain = {name: step.ratio for name, step in steps.items() if step.low > 1.0}
    if not certain:
        return f"No technique certainly gains here; {together}, {_span(measured[-1])}"
    best = max(certain, key=lambda name: certain[name])
    return f"Most is gained with {best} ({certain[best]:.2f}×); {together}"


def _span(ratio: Ratio) -> str:
    return f"{ratio.low:.2f} to {ratio.high:.2f}"


def figure(bench: Bench) -> Figure:
    """Return a bar for the baseline and one for each technique added, with intervals."""
    ratios = _ratios(bench)
    names = [bench.baseline, *(f"+ {name}" for name in ratios)]
    plot = Figure(figsize=(8.0, 1.3 + 0.36 * len(names)), layout="constrained")
    axes = plot.subplots()
    axes.barh(0, 1.0, height=0.6, color=COLOURS[3])
    for y, ratio in enumerate(ratios.values(), 1):
        if ratio is None:
            axes.text(0.02, y, "not measured", va="center", fontsize="small", color="dimgray")
            continue
        axes.barh(y, ratio.ratio, height=0.6, color=COLOURS[0])
        axes.errorbar(
            ratio.ratio,
            y,
            xerr=[[ratio.ratio - ratio.low], [ratio.high - ratio.ratio]],
            color="black",
            linewidth=0.8,
            capsize=2,
        )
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)  # the baseline at the top
    axes.set(title=title(bench), xlabel=f"times as fast as {bench.baseline}, with intervals")
    axes.grid(axis="x", alpha=0.3)
    return plot


def text(bench: Bench) -> str:
    """Return the alternative text of `figure`."""
    bars = ", ".join(
        f"with {name} {f'{ratio.ratio:.2f}' if ratio else 'not measured'}"
        for name, ratio in _ratios(bench).items()
    )
    return f"Bars with intervals, times as fast as {bench.baseline}: {bars}. {title(bench)}."


def rows(bench: Bench) -> Rows:
    """Return the table of `figure`."""
    outcome, ratios, steps = _outcome(bench), _ratios(bench), _steps(bench)
    table = [["techniques", "step", f"over {bench.baseline}", "over the row above", "parity"]]
    table.append(
        [bench.baseline, seconds(outcome.rows[bench.baseline].step_seconds["p50"]), "1", "", ""]
    )
    for name, ratio in ratios.items():
        row = outcome.rows[name]
        step = ratio_text(steps[name]) if name in steps else ""
        if row.reason is not None:
            table.append([f"+ {name}", "", "", "", row.reason])
            continue
        parity = "passed" if row.comparable else "FAILED"
        table.append(
            [f"+ {name}", seconds(row.step_seconds["p50"]), ratio_text(ratio), step, parity]
        )
    return table
