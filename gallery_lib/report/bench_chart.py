"""Charts of a bench, and of a waterfall: how many times as fast as the baseline each bar is."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gallery_lib.measure.bench.result import OURS, Bench
from gallery_lib.report import style
from gallery_lib.report.bench_tables import best_label, over_best, summary_rows, task_rows
from gallery_lib.report.chart import Chart, listed
from gallery_lib.report.names import MEANINGS, baseline_title, task_title
from gallery_lib.stats import Ratio

_OF_WATERFALL = (0, 1, 6, 7, 10)
"""Columns of `task_rows` in the chart of a waterfall: name, step, both ratios, parity."""


def chart(bench: Bench) -> Chart:
    """Return the chart of a bench or a waterfall.

    A bench has a bar per task for ours over the baseline, the longest first, and a tick for the
    best of the others. Bars have intervals; ticks have none. A waterfall has a bar per technique.
    """
    return _waterfall(bench) if bench.kind == "waterfall" else _bench(bench)


def _bench(bench: Bench) -> Chart:
    ratios = {name: outcome.ratio(bench.baseline, OURS) for name, outcome in bench.tasks.items()}
    ours = dict(sorted(ratios.items(), key=lambda item: -item[1].ratio if item[1] else 0.0))
    verdicts = [ratio.verdict if ratio else "not measured" for ratio in ours.values()]
    others = [f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts) if v != "faster"]
    title = f"Ours is faster in {verdicts.count('faster')} of {len(ours)} tasks"
    title += f" ({listed(others)})" if others else ""

    def draw() -> Figure:
        bars = [style.Bar(task_title(name), ratio) for name, ratio in ours.items()]
        plot, axes = style.ratio_bars(bars, title, baseline_title(bench))
        _draw_ticks(axes, bench, list(ours))
        return plot

    header, *_ = summary = summary_rows(bench)
    columns = sorted({0, header.index(f"ours over {bench.baseline}"), len(header) - 1})
    return Chart(title, [[row[i] for i in columns] for row in summary], draw)


def _draw_ticks(axes: Any, bench: Bench, tasks: list[str]) -> None:
    """Draw the best of the others over the baseline, for each task that has one."""
    ticks = []
    for place, task in enumerate(tasks):
        best = over_best(bench, task)
        if best and (ratio := bench.tasks[task].ratio(bench.baseline, best[0])):
            ticks.append((ratio.ratio, place))
    if ticks:
        axes.plot(
            *zip(*ticks, strict=True),
            linestyle="",
            marker="|",
            markersize=13,
            markeredgewidth=3,
            color=style.OTHERS,
            label=best_label(bench),
        )
        handles = [Patch(color=style.OURS, label=OURS), *axes.get_legend_handles_labels()[0]]
        axes.figure.legend(handles=handles, loc="outside lower center", frameon=False, ncols=2)


def _waterfall(bench: Bench) -> Chart:
    outcome, baseline = next(iter(bench.tasks.values())), baseline_title(bench)
    ratios = {
        name: outcome.ratio(outcome.baseline, name)
        for name in outcome.rows
        if name != outcome.baseline
    }
    title = _waterfall_title(bench, ratios)
    header, *body = ([row[i] for i in _OF_WATERFALL] for row in task_rows(outcome, bench.kind))
    rows = [[*header, "what it does"]]
    rows += [[*row, MEANINGS.get(row[0].removeprefix("+ "), "")] for row in body]
    bars = [style.Bar(f"+ {name}", ratio) for name, ratio in ratios.items()]
    return Chart(title, rows, lambda: style.ratio_bars(bars, title, baseline, plain=baseline)[0])


def _waterfall_title(bench: Bench, ratios: dict[str, Ratio | None]) -> str:
    """Return what all techniques gain together, and which one certainly gains most."""
    outcome = next(iter(bench.tasks.values()))
    steps, before = {}, outcome.baseline
    for name, ratio in ratios.items():
        if ratio is not None and (step := outcome.ratio(before, name)) is not None:
            steps[name], before = step, name
    if not steps:
        return "No technique could be compared with the baseline"
    whole, other = [ratio for ratio in ratios.values() if ratio][-1], baseline_title(bench)
    together = (
        f"All together {whole.ratio:.2f}× as fast as {other}"
        if style.measurable(whole)
        else f"All together: not measurable ({whole} of {other})"
    )
    helping = {name: step.ratio for name, step in steps.items() if step.verdict == "faster"}
    if not helping:
        return f"{together}; what a single technique gains is not measurable"
    best = max(helping, key=lambda name: helping[name])
    return f"{together}; most comes with {best}, {helping[best]:.2f}×"
