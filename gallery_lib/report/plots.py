"""Plots of a comparison: throughput over time, losses, step times, break-even.

Every plot function returns a matplotlib Figure. Two other functions stand beside it: one returns
the figure's alternative text, one the rows of a table with the same figures. Colours are from the
Okabe-Ito palette. Line style and marker differ as well, so that plots survive print and colour
blindness.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from gallery_lib.console.table import Rows, number, rate, seconds
from gallery_lib.measure.comparison.result import Comparison
from gallery_lib.report import verdict
from gallery_lib.train.results import Results
from gallery_lib.train.run_log import each_step_seconds

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
LINES = ("-", "--", "-.", ":")
_TABLE_STEPS = 8
"""Number of evenly spread steps that the table of a loss curve has."""


def labelled_figure(
    title: str, x: str, y: str, width: float = 7.0, height: float = 3.6
) -> tuple[Figure, Any]:
    """Return a figure with a title and labelled axes, and its axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    return figure, axes


def timelines(comparison: Comparison) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return, for each variant, the end of every step and the samples trained by then.

    The end of a step is in seconds since launch. Turns of the other variant are left out; start-up
    and compilation are included.
    """
    result = {}
    for name, run in comparison.variants.items():
        durations = np.array(each_step_seconds(Path(comparison.folder) / name))
        warmup = run.warmup_steps
        before_first_step = run.startup_seconds["total"] - max(
            0.0, float(durations[:warmup].sum()) - warmup * run.step_seconds["p50"]
        )
        per_step = run.config["batch_size"] * run.world_size
        result[name] = (
            before_first_step + np.cumsum(durations),
            per_step * np.arange(1, len(durations) + 1),
        )
    return result


def throughput(comparison: Comparison) -> Figure:
    """Return a figure of each step's samples per second over the time since launch.

    Start-up is included.
    """
    figure, axes = labelled_figure(
        _throughput_title(comparison),
        "seconds since launch",
        "samples/s",
    )
    for (name, (ends, samples)), colour, line in zip(
        timelines(comparison).items(), COLOURS, LINES, strict=False
    ):
        rates = np.diff(samples, prepend=0) / np.diff(ends, prepend=0)
        rates[0] = samples[0] / ends[0]
        # Until its first step ends, a variant has trained nothing.
        axes.step(
            np.r_[0, ends],
            np.r_[rates[0], rates],
            where="pre",
            color=colour,
            linestyle=line,
            label=name,
        )
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


def _throughput_title(comparison: Comparison) -> str:
    """Return what the figure says: the rates of both, and how long each trains nothing."""
    parts = [
        f"{name}: nothing for {seconds(ends[0])}, then {rate(run.samples_per_second['global'])}"
        for (name, (ends, _)), run in zip(
            timelines(comparison).items(), comparison.variants.values(), strict=True
        )
    ]
    return "\n".join(parts)


def throughput_text(comparison: Comparison) -> str:
    """Return the alternative text of `throughput`."""
    parts = [
        (
            f"{name} trains nothing for {seconds(ends[0])} and then "
            f"{rate(run.samples_per_second['global'])}"
        )
        for (name, (ends, _)), run in zip(
            timelines(comparison).items(), comparison.variants.values(), strict=True
        )
    ]
    return "Line plot of throughput over the time since launch: " + "; ".join(parts) + "."


def throughput_rows(comparison: Comparison) -> Rows:
    """Return the table of `throughput`."""
    rows = [["", "trains nothing for", "then", "start-up included"]]
    for (name, (ends, _)), run in zip(
        timelines(comparison).items(), comparison.variants.values(), strict=True
    ):
        rates = run.samples_per_second
        rows.append([name, seconds(ends[0]), rate(rates["global"]), rate(rates["whole_run"])])
    return rows


def losses(comparison: Comparison) -> Figure:
    """Return a figure of the training loss of both variants, step by step."""
    figure, axes = labelled_figure(_losses_title(comparison), "step", "loss")
    for (name, run), colour, line in zip(comparison.variants.items(), COLOURS, LINES, strict=False):
        steps, values = zip(
            *[(s, np.nan if v is None else v) for s, v in run.loss["curve"]], strict=True
        )
        axes.plot(steps, values, color=colour, linestyle=line, label=name)
    axes.legend()
    return figure


def _losses_title(comparison: Comparison) -> str:
    """Return what the figure says: from where to where each loss went."""
    parts = [
        f"{name}: {_loss(r.loss['first'])} to {_loss(r.loss['last'])}"
        for name, r in comparison.variants.items()
    ]
    return f"Training loss, {'; '.join(parts)}"


def _loss(value: float | None) -> str:
    return "not finite" if value is None else number(value)


def losses_text(comparison: Comparison) -> str:
    """Return the alternative text of `losses`."""
    parts = [
        f"{name} from {_loss(r.loss['first'])} to {_loss(r.loss['last'])}"
        for name, r in comparison.variants.items()
    ]
    return "Line plot of training loss by step: " + "; ".join(parts) + "."


def losses_rows(comparison: Comparison) -> Rows:
    """Return the table of `losses` at some of the steps, including the first and the last."""
    curves = [run.loss["curve"] for run in comparison.variants.values()]
    count = min(map(len, curves))
    places = np.unique(np.linspace(0, count - 1, min(count, _TABLE_STEPS)).round().astype(int))
    rows = [["step", *comparison.variants]]
    return rows + [
        [str(curves[0][i][0]), *(_loss(curve[i][1]) for curve in curves)] for i in places
    ]


def _steady(comparison: Comparison) -> dict[str, np.ndarray]:
    return {
        name: 1000 * np.array(each_step_seconds(Path(comparison.folder) / name)[run.warmup_steps :])
        for name, run in comparison.variants.items()
    }


def step_times(comparison: Comparison) -> Figure:
    """Return a figure of the distribution of step times after the warm-up."""
    medians = [
        f"{name} below {number(np.median(ms))} ms" for name, ms in _steady(comparison).items()
    ]
    figure, axes = labelled_figure(
        f"Half of the steps: {', '.join(medians)}",
        "step time [ms]",
        "share of steps that take at most this long",
    )
    for (name, milliseconds), colour, line in zip(
        _steady(comparison).items(), COLOURS, LINES, strict=False
    ):
        axes.ecdf(milliseconds, color=colour, linestyle=line, label=name)
    axes.set_xlim(left=0)
    axes.legend(loc="lower right")
    return figure


def step_times_text(comparison: Comparison) -> str:
    """Return the alternative text of `step_times`."""
    parts = [
        (
            f"{name}: half below {number(np.median(ms))} ms, 95 % below "
            f"{number(np.percentile(ms, 95))} ms"
        )
        for name, ms in _steady(comparison).items()
    ]
    return "Cumulative distribution of step times: " + "; ".join(parts) + "."


def step_times_rows(comparison: Comparison) -> Rows:
    """Return the table of `step_times`."""
    rows = [["share of steps", *(f"{name}, at most" for name in comparison.variants)]]
    steady = _steady(comparison).values()
    return rows + [
        [f"{share} %", *(f"{number(np.percentile(ms, share))} ms" for ms in steady)]
        for share in (5, 25, 50, 75, 95, 100)
    ]


def _seconds_after(run: Results, steps: int) -> float:
    return run.startup_seconds["total"] + steps * run.step_seconds["p50"]


def _steps_shown(comparison: Comparison) -> int:
    steps = comparison.break_even_steps
    return max(comparison.baseline.steps, int(1.5 * steps) if steps else 0)


def break_even(comparison: Comparison) -> Figure:
    """Return a figure of the time since launch by number of steps, start-up included.

    The lines are extended at the steady-state rate to the break-even point.
    """
    paid = comparison.break_even_steps
    figure, axes = labelled_figure(
        f"The longer start-up is paid for after {paid:,} steps" if paid else "Time since launch",
        "steps trained",
        "seconds since launch",
    )
    steps = comparison.break_even_steps
    for (name, run), colour, line in zip(comparison.variants.items(), COLOURS, LINES, strict=False):
        x = [0, _steps_shown(comparison)]
        axes.plot(x, [_seconds_after(run, n) for n in x], color=colour, linestyle=line, label=name)
    if steps:
        axes.plot(
            [steps],
            [_seconds_after(comparison.candidate, steps)],
            marker="o",
            color="black",
            linestyle="",
            label=f"break-even: {steps:,} steps",
        )
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


def break_even_text(comparison: Comparison) -> str:
    """Return the alternative text of `break_even`."""
    return "Line plot of time since launch by steps trained. " + verdict.break_even_line(comparison)


def break_even_rows(comparison: Comparison) -> Rows:
    """Return the table of `break_even`, with the break-even point if there is one."""
    counts = sorted({0, comparison.break_even_steps or 0, _steps_shown(comparison)})
    rows = [["steps trained", *(f"{name}, since launch" for name in comparison.variants)]]
    return rows + [
        [f"{n:,}", *(seconds(_seconds_after(run, n)) for run in comparison.variants.values())]
        for n in counts
    ]
