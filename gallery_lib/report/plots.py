"""Charts of a comparison, of training in a notebook's kernel, of scripts in turns, of images."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from gallery_lib.console.text import Rows, number, rate, seconds
from gallery_lib.measure.comparison.result import Comparison
from gallery_lib.measure.comparison.script_turns import ScriptTurns
from gallery_lib.measure.step_profile import StepProfile
from gallery_lib.report.style import COLOURS, LOOKS, Bar, Chart, one_panel, ratio_bars
from gallery_lib.tasks.task import Pictures
from gallery_lib.train.results import Results, each_step_seconds

_TABLE_STEPS = 8  # number of evenly spread steps that the table of a loss curve has
# Part of the first pass's loss that the second pass's must be below, for a loss that fell.
_FELL = 0.99
_GROUPS_SHOWN = 10
_LETTERS_PER_INCH = 15  # of captions, in a font of 8.5 points
_MARKUP = re.compile(r"[\\`*_\[\]<>|#~$]")  # characters that are markup in Markdown
_BUSY = "The machine was busy, so no speed is drawn: measure again when it is quiet"


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
        result[name] = (
            before_first_step + np.cumsum(durations),
            run.config["batch_size"] * run.world_size * np.arange(1, len(durations) + 1),
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
    curves = [run.loss["curve"] for run in comparison.variants.values()]
    count = min(map(len, curves))
    places = np.unique(np.linspace(0, count - 1, min(count, _TABLE_STEPS)).round().astype(int))
    rows = [["step", *comparison.variants]]
    rows += [[str(curves[0][i][0]), *(_loss(curve[i][1]) for curve in curves)] for i in places]
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


# --------------------------------------------------------------------------------------------------
# Training in the notebook's own kernel


def _passes(losses: Sequence[float]) -> tuple[float, float]:
    """Return the mean losses of the first and the second half of the steps: of the two passes."""
    half = len(losses) // 2
    return mean(losses[:half] or losses), mean(losses[half:])


def fell(losses: Sequence[float]) -> bool:
    """Return whether the loss of the second pass is finite and below that of the first.

    The passes are over the same batches, since losses of different ones differ by chance.
    """
    first, second = _passes(losses)
    return math.isfinite(second) and second < _FELL * first


def _training_title(curves: Mapping[str, Sequence[float]]) -> str:
    failed = [name for name, losses in curves.items() if not fell(losses)]
    passes = zip(*map(_passes, curves.values()), strict=True)
    start, end = (" and ".join(dict.fromkeys(map(number, values))) for values in passes)
    change = f"from {start} to {end}"
    if not failed:
        which = "The loss" if len(curves) == 1 else "Both losses"
        return f"{which} fell in the second pass, {change}"
    if len(failed) == len(curves):
        return f"No loss fell in the second pass: {change}"
    return f"The loss of {failed[0]} did not fall in the second pass: {change}"


def training(curves: Mapping[str, Sequence[float]]) -> Chart:
    """Return the chart and table of the loss of each step, a curve for each name.

    The steps of a curve are two passes over the same batches, and the title says whether the second
    one's losses are lower. Curves beyond the number of `LOOKS` are in the table only.
    """
    rows = [["step", *curves]]
    for step in range(max(map(len, curves.values()))):
        values = [number(losses[step]) if step < len(losses) else "" for losses in curves.values()]
        rows.append([str(step + 1), *values])

    def draw(axes: Any) -> None:
        for (name, values), look in zip(curves.items(), LOOKS, strict=False):
            axes.plot(range(1, len(values) + 1), values, **look, marker=".", label=name)
        axes.legend()

    return one_panel(_training_title(curves), rows, draw, xlabel="step", ylabel="loss")


def profile(profiles: Mapping[str, StepProfile]) -> Chart:
    """Return the milliseconds of a step by groups of operators, the largest groups first."""
    most = {
        group: max(p.groups.get(group, 0.0) for p in profiles.values())
        for one in profiles.values()
        for group in one.groups
    }
    by_time = sorted(most, key=lambda group: -most[group])
    groups = by_time[:_GROUPS_SHOWN]
    rows = [["group of operators", *(f"{name}, ms (share)" for name in profiles)]]
    rows += [[group, *(_cell(p, group) for p in profiles.values())] for group in groups]
    if rest := by_time[_GROUPS_SHOWN:]:
        sums = (sum(p.groups.get(name, 0.0) for name in rest) for p in profiles.values())
        rows.append(["everything else", *(number(1000 * seconds) for seconds in sums)])
    rows.append(["step", *(number(1000 * p.seconds) for p in profiles.values())])

    def draw(axes: Any) -> None:
        height = 0.8 / len(profiles)
        for place, ((name, one), colour) in enumerate(zip(profiles.items(), COLOURS, strict=False)):
            axes.barh(
                [y + (place - (len(profiles) - 1) / 2) * height for y in range(len(groups))],
                [1000 * one.groups.get(group, 0.0) for group in groups],
                height=height,
                color=colour,
                label=f"{name}: {_milliseconds(one.seconds)}",
            )
        axes.grid(visible=False, axis="y")
        axes.set_yticks(range(len(groups)), groups)
        axes.set_ylim(len(groups) - 0.5, -0.5)  # the largest at the top
        axes.legend(loc="lower right")

    size = (8.0, 1.3 + 0.33 * len(groups))
    label = "milliseconds of a step, profiler included"
    steps = [f"{name} {_milliseconds(one.seconds)}" for name, one in profiles.items()]
    title = f"A step by groups of operators: {', '.join(steps)}"
    return one_panel(title, rows, draw, size, xlabel=label)


def _cell(one: StepProfile, group: str) -> str:
    return f"{number(1000 * one.groups.get(group, 0.0))} ({one.share(group):.0%})"


def _milliseconds(seconds: float) -> str:
    return f"{number(1000 * seconds)} ms"


# --------------------------------------------------------------------------------------------------
# Scripts that took turns


def script_turns(turns: ScriptTurns) -> Chart:
    """Return a bar for each script, with the interval of its ratio, the fastest first.

    On a busy machine a script with fewer threads seems faster than it is, so no ratio is drawn.
    """
    over, busy = turns.baseline, turns.load.reasons()
    ratios = {name: turns.ratio(name) for name in turns.scripts if name != over}
    bars = [
        Bar(name, None if busy else ratio, "not judged" if ratio else "not comparable")
        for name, ratio in sorted(ratios.items(), key=lambda one: -one[1].ratio if one[1] else 0.0)
    ]
    faster = {name: r.ratio for name, r in ratios.items() if r and r.verdict == "faster"}
    title = f"No script is certainly faster than {over}"
    if busy:
        title = _BUSY
    elif faster:
        best = max(faster, key=lambda name: faster[name])
        title = f"{best} is {faster[best]:.2f}× as fast as {over}"
    return Chart(title, _turns_rows(turns), lambda: ratio_bars(bars, title, over, plain=over)[0])


def _turns_rows(turns: ScriptTurns) -> Rows:
    """Return the throughput and ratio of each script, its first loss, and what that must be."""
    header = ["script", "throughput", f"times as fast as {turns.baseline}", "first loss"]
    table = [[*header, "same training", "precision and batches"]]
    for name, script in turns.scripts.items():
        ratio, is_baseline = turns.ratio(name), name == turns.baseline
        shown = f"{ratio or 'no ratio'}"
        if ratio and turns.load.reasons():
            shown += ", not judged: busy"
        table.append(
            [
                name,
                rate(turns.samples_per_second(name)),
                "1" if is_baseline else shown,
                f"{turns.first_losses[name]:.4f}",
                "" if is_baseline else turns.parity(name)[1],
                script.conditions,
            ]
        )
    return table


def script_notes(turns: ScriptTurns) -> list[str]:
    """Return how the table was measured, a sentence each, and what disturbed the measurement."""
    own = turns.rounds[turns.baseline]
    lines = [
        f"Rounds: {len(own)}, with {len(own[0])} counted line(s) of the log in each turn. A ratio "
        "is the median over rounds, with its 99 % interval.",
        "The interval allows for what processes of the same code differ by.",
    ]
    if reasons := turns.load.reasons():
        lines.append(f"**The machine was busy**: {'; '.join(reasons)}.")
    elif waits := turns.load.sentence():
        lines.append(waits)
    return lines


# --------------------------------------------------------------------------------------------------
# Images of a task


def images(pictures: Pictures) -> Chart:
    """Return a grid of captioned pictures; its table has the captions."""
    captions = (one.replace(",\n", ", ").replace("\n", "; ") for one in pictures.captions)
    rows = [["image", "shown"]]
    rows += [[str(i), _MARKUP.sub(r"\\\g<0>", one)] for i, one in enumerate(captions, 1)]
    return Chart(f"Images: {pictures.description}", rows, lambda: _grid(pictures))


def _grid(pictures: Pictures) -> Figure:
    columns = min(pictures.columns, len(pictures.images))
    rows = -(-len(pictures.images) // columns)
    cell = 9.2 / columns
    captions = [
        "\n".join(textwrap.fill(line, int(_LETTERS_PER_INCH * cell)) for line in one.splitlines())
        for one in pictures.captions
    ]
    lines = max(caption.count("\n") + 1 for caption in captions)
    height, width = pictures.images[0].shape[:2]
    grid = Figure(
        figsize=(cell * columns, (cell * height / width + 0.17 * lines + 0.2) * rows),
        layout="constrained",
    )
    for place, (image, caption) in enumerate(zip(pictures.images, captions, strict=True), 1):
        axes = grid.add_subplot(rows, columns, place)
        axes.imshow(image)
        axes.set_title(caption, fontsize=8.5, loc="left")
        axes.axis("off")
    return grid
