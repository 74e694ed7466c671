"""Charts of a comparison: throughput over time, losses, step times, break-even."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from gallery_lib.console.table import number, rate, seconds
from gallery_lib.measure.comparison.result import Comparison
from gallery_lib.report.chart import Chart, one_panel
from gallery_lib.report.style import LOOKS
from gallery_lib.train.results import Results
from gallery_lib.train.run_log import each_step_seconds

_TABLE_STEPS = 8
"""Number of evenly spread steps that the table of a loss curve has."""


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


def _looks(comparison: Comparison) -> Iterable[tuple[Results, dict[str, Any]]]:
    """Yield each variant with what its line is drawn with."""
    for (name, run), look in zip(comparison.variants.items(), LOOKS, strict=False):
        yield run, {**look, "label": name}


def throughput(comparison: Comparison) -> Chart:
    """Return the samples per second of each step over the time since launch, with start-up."""
    lines = timelines(comparison)
    rows = [["", "trains nothing for", "then", "start-up included"]]
    for (name, run), (ends, _) in zip(comparison.variants.items(), lines.values(), strict=True):
        rates = run.samples_per_second
        rows.append([name, seconds(ends[0]), rate(rates["global"]), rate(rates["whole_run"])])
    title = "\n".join(f"{row[0]}: nothing for {row[1]}, then {row[2]}" for row in rows[1:])

    def draw(axes: Any) -> None:
        for (ends, samples), (_, look) in zip(lines.values(), _looks(comparison), strict=True):
            rates = np.diff(samples, prepend=0) / np.diff(ends, prepend=0)
            rates[0] = samples[0] / ends[0]
            # Until its first step ends, a variant has trained nothing.
            axes.step(np.r_[0, ends], np.r_[rates[0], rates], where="pre", **look)
        axes.set_ylim(bottom=0)
        axes.legend()

    return one_panel(title, rows, draw, xlabel="seconds since launch", ylabel="samples/s")


def losses(comparison: Comparison) -> Chart:
    """Return the training loss of both variants, step by step; the table has some of the steps."""
    curves = {name: run.loss["curve"] for name, run in comparison.variants.items()}
    first = next(iter(curves.values()))
    count = min(map(len, curves.values()))
    places = np.unique(np.linspace(0, count - 1, min(count, _TABLE_STEPS)).round().astype(int))
    rows = [["step", *curves]]
    rows += [[str(first[i][0]), *(_loss(curve[i][1]) for curve in curves.values())] for i in places]
    ends = [
        f"{name}: {_loss(run.loss['first'])} to {_loss(run.loss['last'])}"
        for name, run in comparison.variants.items()
    ]

    def draw(axes: Any) -> None:
        for run, look in _looks(comparison):
            points = [(step, np.nan if loss is None else loss) for step, loss in run.loss["curve"]]
            axes.plot(*zip(*points, strict=True), **look)
        axes.legend()

    title = f"Training loss, {'; '.join(ends)}"
    return one_panel(title, rows, draw, xlabel="step", ylabel="loss")


def _loss(value: float | None) -> str:
    return "not finite" if value is None else number(value)


def step_times(comparison: Comparison) -> Chart:
    """Return the distribution of step times after the warm-up."""
    steady = {
        name: 1000 * np.array(each_step_seconds(Path(comparison.folder) / name)[run.warmup_steps :])
        for name, run in comparison.variants.items()
    }
    rows = [["share of steps", *(f"{name}, at most" for name in steady)]]
    rows += [
        [f"{share} %", *(f"{number(np.percentile(ms, share))} ms" for ms in steady.values())]
        for share in (5, 25, 50, 75, 95, 100)
    ]
    medians = [f"{name} below {number(np.median(ms))} ms" for name, ms in steady.items()]

    def draw(axes: Any) -> None:
        for milliseconds, (_, look) in zip(steady.values(), _looks(comparison), strict=True):
            axes.ecdf(milliseconds, **look)
        axes.set_xlim(left=0)
        axes.legend(loc="lower right")

    return one_panel(
        f"Half of the steps: {', '.join(medians)}",
        rows,
        draw,
        xlabel="step time [ms]",
        ylabel="share of steps that take at most this long",
    )


def _seconds_after(run: Results, steps: int) -> float:
    return run.startup_seconds["total"] + steps * run.step_seconds["p50"]


def break_even(comparison: Comparison) -> Chart:
    """Return the time since launch by number of steps, start-up included.

    The lines are extended at the steady-state rate to the break-even point, if there is one.
    """
    paid = comparison.break_even_steps
    shown = max(comparison.baseline.steps, int(1.5 * paid) if paid else 0)
    rows = [["steps trained", *(f"{name}, since launch" for name in comparison.variants)]]
    rows += [
        [f"{n:,}", *(seconds(_seconds_after(run, n)) for run in comparison.variants.values())]
        for n in sorted({0, paid or 0, shown})
    ]

    def draw(axes: Any) -> None:
        for run, look in _looks(comparison):
            axes.plot([0, shown], [_seconds_after(run, n) for n in (0, shown)], **look)
        if paid:
            label = f"break-even: {paid:,} steps"
            axes.plot([paid], [_seconds_after(comparison.candidate, paid)], "ko", label=label)
        axes.set_ylim(bottom=0)
        axes.legend()

    return one_panel(
        f"The longer start-up is paid for after {paid:,} steps" if paid else "Time since launch",
        rows,
        draw,
        xlabel="steps trained",
        ylabel="seconds since launch",
    )
