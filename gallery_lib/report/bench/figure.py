"""Figure of a bench or a waterfall, and its alternative text."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from gallery_lib.measure.bench.result import OURS, Bench
from gallery_lib.report.bench.leads import best_label, over_best
from gallery_lib.stats import Ratio

_OURS_COLOUR, _TICK_COLOUR = "#56B4E9", "#D55E00"


def figure(bench: Bench) -> Figure:
    """Return the figure of a bench or a waterfall.

    A bench has a bar per task for ours over the baseline, and a tick for the best of the others. A
    waterfall has a point per technique. Bars and points have intervals; ticks have none. A missing
    ratio is labelled `not measured`.
    """
    values = _steps_of_waterfall(bench) if bench.kind == "waterfall" else _ours(bench)
    plot = Figure(figsize=(8.0, 1.2 + 0.32 * len(values)), layout="constrained")
    axes = plot.subplots()
    measured = [(y, ratio) for y, ratio in enumerate(values.values()) if ratio is not None]
    places, ratios = [y for y, _ in measured], [r.ratio for _, r in measured]
    spans = [[r.ratio - r.low for _, r in measured], [r.high - r.ratio for _, r in measured]]
    if bench.kind == "waterfall":
        axes.errorbar(
            ratios, places, xerr=spans, linestyle="", marker="o", color=_OURS_COLOUR, capsize=2
        )
    else:
        axes.barh(places, ratios, height=0.6, color=_OURS_COLOUR, label=OURS)
        axes.errorbar(
            ratios, places, xerr=spans, linestyle="", color="black", linewidth=0.8, capsize=2
        )
        _draw_ticks(axes, bench)
    for y, ratio in enumerate(values.values()):
        if ratio is None:
            axes.text(1.02, y, "not measured", va="center", fontsize="small", color="dimgray")
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(values)), list(values))
    axes.set_ylim(len(values) - 0.5, -0.5)  # the first at the top
    axes.set(
        xlabel=f"times as fast as {bench.baseline}", title="Steady-state speed, with intervals"
    )
    axes.grid(axis="x", alpha=0.3)
    return plot


def _draw_ticks(axes: Any, bench: Bench) -> None:
    names, ticks = list(bench.tasks), _ticks(bench)
    if ticks:
        places = [names.index(task) for task in ticks]
        values = [ratio.ratio for _, ratio in ticks.values()]
        axes.plot(
            values,
            places,
            linestyle="",
            marker="|",
            markersize=13,
            markeredgewidth=3,
            color=_TICK_COLOUR,
            label=best_label(bench),
        )
    if axes.get_legend_handles_labels()[0]:
        axes.figure.legend(loc="outside lower center", fontsize="small", frameon=False, ncols=2)


def figure_text(bench: Bench) -> str:
    """Return the alternative text of `figure`."""
    if bench.kind == "waterfall":
        points = ", ".join(
            f"{name} {_ratio_text(ratio)}" for name, ratio in _steps_of_waterfall(bench).items()
        )
        return f"Points with intervals, times as fast as {bench.baseline}. {points}."
    bars = ", ".join(f"{name} {_ratio_text(ratio)}" for name, ratio in _ours(bench).items())
    ticks = ", ".join(
        f"{task} {ratio.ratio:.2f} ({name})" for task, (name, ratio) in _ticks(bench).items()
    )
    ticks_text = f" Ticks, {best_label(bench)}: {ticks}." if ticks else ""
    return (
        f"Bars with intervals, times as fast as {bench.baseline}, and a line at 1. {OURS}: "
        f"{bars}.{ticks_text}"
    )


def _ratio_text(ratio: Ratio | None) -> str:
    return f"{ratio.ratio:.2f}" if ratio else "not measured"


def _steps_of_waterfall(bench: Bench) -> dict[str, Ratio | None]:
    """Return the techniques in the order of addition, each with a ratio over the baseline.

    The ratio is that of all techniques added so far.
    """
    outcome = next(iter(bench.tasks.values()))
    return {
        f"+ {name}": outcome.ratio(outcome.baseline, name)
        for name in outcome.rows
        if name != outcome.baseline
    }


def _ours(bench: Bench) -> dict[str, Ratio | None]:
    """Return the ratio of ours over the baseline, by task."""
    return {name: outcome.ratio(bench.baseline, OURS) for name, outcome in bench.tasks.items()}


def _ticks(bench: Bench) -> dict[str, tuple[str, Ratio]]:
    """Return the best of the others, with its ratio over the baseline, by task."""
    ticks = {}
    for task, outcome in bench.tasks.items():
        best = over_best(bench, task)
        if best and (ratio := outcome.ratio(bench.baseline, best[0])):
            ticks[task] = best[0], ratio
    return ticks
