"""Plots of a comparison: throughput over time, losses, step times, break-even.

Every function returns a matplotlib Figure and has a description function beside it for the figure's alternative
text. Colours are from the Okabe-Ito palette, told apart by line style and marker as well, so that they survive
print and colour blindness.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from gallery_lib.measure.compare import Comparison
from gallery_lib.measure.lineup import each_step_seconds

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
LINES = ("-", "--", "-.", ":")


def _figure(title: str, x: str, y: str, width: float = 7.0, height: float = 3.6) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.grid(alpha=0.3)
    return figure, axes


def timelines(comparison: Comparison) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """For each variant: seconds since its launch at the end of every step, and samples trained by then.

    Time in which the other variant had its turn is left out; start-up and compilation are in.
    """
    result = {}
    for name, run in comparison.variants.items():
        seconds = np.array(each_step_seconds(Path(comparison.folder) / name))
        warmup = run.warmup_steps
        before_first_step = run.startup_seconds["total"] - max(0.0, float(seconds[:warmup].sum()) - warmup * run.step_seconds["p50"])
        per_step = run.config["batch_size"] * run.world_size
        result[name] = (before_first_step + np.cumsum(seconds), per_step * np.arange(1, len(seconds) + 1))
    return result


def throughput(comparison: Comparison) -> Figure:
    """Samples per second of each step over the time since launch, start-up included."""
    figure, axes = _figure("Throughput since launch, start-up and compilation included", "seconds since launch", "samples/s")
    for (name, (ends, samples)), colour, line in zip(timelines(comparison).items(), COLOURS, LINES, strict=False):
        rates = np.diff(samples, prepend=0) / np.diff(ends, prepend=0)
        rates[0] = samples[0] / ends[0]
        # Until its first step ends, a variant has trained nothing.
        axes.step(np.r_[0, ends], np.r_[rates[0], rates], where="pre", color=colour, linestyle=line, label=name)
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


def throughput_text(comparison: Comparison) -> str:
    """Alternative text of `throughput`."""
    parts = [
        f"{name} trains nothing for {ends[0]:.0f} s and then {run.samples_per_second['global']:.1f} samples/s"
        for (name, (ends, _)), run in zip(timelines(comparison).items(), comparison.variants.values(), strict=True)
    ]
    return "Line plot of throughput over the time since launch: " + "; ".join(parts) + "."


def losses(comparison: Comparison) -> Figure:
    """Training loss of both variants, step by step."""
    figure, axes = _figure("Training loss", "step", "loss")
    for (name, run), colour, line in zip(comparison.variants.items(), COLOURS, LINES, strict=False):
        steps, values = zip(*[(s, np.nan if v is None else v) for s, v in run.loss["curve"]], strict=True)
        axes.plot(steps, values, color=colour, linestyle=line, label=name)
    axes.legend()
    return figure


def _loss(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.2f}"


def losses_text(comparison: Comparison) -> str:
    """Alternative text of `losses`."""
    parts = [f"{name} from {_loss(r.loss['first'])} to {_loss(r.loss['last'])}" for name, r in comparison.variants.items()]
    return "Line plot of training loss by step: " + "; ".join(parts) + "."


def _steady(comparison: Comparison) -> dict[str, np.ndarray]:
    return {
        name: 1000 * np.array(each_step_seconds(Path(comparison.folder) / name)[run.warmup_steps :])
        for name, run in comparison.variants.items()
    }


def step_times(comparison: Comparison) -> Figure:
    """Distribution of step times after the warm-up."""
    figure, axes = _figure("Step time after the warm-up", "step time [ms]", "share of steps that take at most this long")
    for (name, milliseconds), colour, line in zip(_steady(comparison).items(), COLOURS, LINES, strict=False):
        axes.ecdf(milliseconds, color=colour, linestyle=line, label=name)
    axes.set_xlim(left=0)
    axes.legend(loc="lower right")
    return figure


def step_times_text(comparison: Comparison) -> str:
    """Alternative text of `step_times`."""
    parts = [
        f"{name}: half below {np.median(ms):.0f} ms, 95 % below {np.percentile(ms, 95):.0f} ms" for name, ms in _steady(comparison).items()
    ]
    return "Cumulative distribution of step times: " + "; ".join(parts) + "."


def break_even(comparison: Comparison) -> Figure:
    """Time since launch by number of steps, start-up included, extended at the steady-state rate to the break-even point."""
    figure, axes = _figure("When does the longer start-up pay?", "steps trained", "seconds since launch")
    steps = comparison.break_even_steps
    shown = max(comparison.baseline.steps, int(1.5 * steps) if steps else 0)
    for (name, run), colour, line in zip(comparison.variants.items(), COLOURS, LINES, strict=False):
        x = np.array([0, shown])
        axes.plot(x, run.startup_seconds["total"] + x * run.step_seconds["p50"], color=colour, linestyle=line, label=name)
    if steps:
        moment = comparison.candidate.startup_seconds["total"] + steps * comparison.candidate.step_seconds["p50"]
        axes.plot([steps], [moment], marker="o", color="black", linestyle="", label=f"break-even: {steps} steps")
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


def break_even_text(comparison: Comparison) -> str:
    """Alternative text of `break_even`."""
    from gallery_lib.report.tables import break_even_line

    return "Line plot of time since launch by steps trained. " + break_even_line(comparison)
