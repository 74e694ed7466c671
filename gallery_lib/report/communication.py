"""Charts of communication: step times, parity, and what was learned.

A title says what came out. One from a lab of hosts says that the links are emulated.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from gallery_lib.console.table import Rows, seconds
from gallery_lib.measure.communication.convergence import FP32, Scores
from gallery_lib.measure.communication.strategies import ALONE, PLAIN, Effect, Effects
from gallery_lib.report import style
from gallery_lib.report.style import OURS, Chart, fitted, listed, one_panel

EMULATED = "emulated link"
"""What titles and tables call the links of a lab."""
_MEBI = 2**20
_SPREAD = 0.36
"""Width over which the marks of one format lie side by side."""


def _rounds(effect: Effect) -> bool:
    """Return whether the technique rounds gradients, and so changes what is computed."""
    return bool(effect.options["wire"] != "exact")


def _step_times_title(effects: Effects) -> str:
    """Return the network's part of DDP's step, and the best technique with and without rounding.

    A technique counts that is certainly faster than DDP's own, with gradients that are right.
    """
    limit = effects.ways[ALONE].ratio if ALONE in effects.ways else None
    part = "no measurable part"
    if limit and limit.verdict == "faster":
        part = f"{1 - 1 / limit.ratio:.0%}"
    gains: dict[bool, list[tuple[float, str]]] = {False: [], True: []}
    for name, effect in effects.ways.items():
        right = name not in (PLAIN, ALONE) and not effect.parity.startswith("FAILED")
        if right and effect.ratio and effect.ratio.verdict == "faster":
            gains[_rounds(effect)].append((effect.ratio.ratio, name))
    best = [max(group) for group in gains.values() if group]
    gained = listed(f"{name} gains {ratio:.2f}×" for ratio, name in best)
    return (
        f"The network takes {part} of DDP's step; {gained or 'no technique gains'}\n"
        f"{effects.hosts}, {EMULATED}"
    )


def step_times(effects: Effects) -> Chart:
    """Return each technique's step time: a mark for each step, a bar for the median."""
    interval = f"{effects.confidence:.0%} interval"
    rows = [
        [f"technique ({EMULATED})", "step time, median", f"{PLAIN} over it ({interval})", "verdict"]
    ]
    for name, effect in effects.ways.items():
        ratio = effect.ratio
        over = [str(ratio), ratio.verdict] if ratio else ["1, by definition", "baseline"]
        rows.append([name, seconds(effect.seconds), *over])

    def draw(axes: Any) -> None:
        for row, (name, effect) in enumerate(effects.ways.items()):
            axes.barh(
                row,
                1000 * effect.seconds,
                color={ALONE: style.OTHERS, PLAIN: style.PLAIN}.get(name, OURS),
                hatch="//" if _rounds(effect) else None,
                edgecolor="white",
            )
            steps = [1000 * step for steps in effect.rounds for step in steps]
            axes.plot(steps, np.full(len(steps), row), "k|", markersize=9)
            label = seconds(effect.seconds)
            label += "" if effect.ratio is None else f", {effect.ratio.ratio:.2f}×"
            axes.annotate(label, (max(steps), row), (6, 0), textcoords="offset points", va="center")
        names = [f"{name}, rounds" if _rounds(e) else name for name, e in effects.ways.items()]
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.grid(visible=False)
        longest = max(max(steps) for effect in effects.ways.values() for steps in effect.rounds)
        axes.set_xlim(0, 1400 * longest)

    return one_panel(
        _step_times_title(effects),
        rows,
        draw,
        (7.0, 1.3 + 0.45 * len(effects.ways)),
        xlabel="ms; a mark for each step; hatched: the wire format rounds",
    )


def parity_rows(effects: Effects) -> Rows:
    """Return a table of what each technique sends, and how far its gradients are off.

    The error of a gradient is its distance from the mean in float64.
    """
    header = [f"technique ({EMULATED})", "sent by a host in a step, computed"]
    header += ["counted by its network card", "error of the gradient", "limit", "parity"]
    rows = [header]
    for name, effect in effects.ways.items():
        computed, sent = effect.computed_bytes, effect.sent_bytes
        error, limit = (
            "–" if value is None else f"{value:.1g}"
            for value in (effect.gradient_error, None if name == ALONE else effect.limit)
        )
        counted = "not counted" if sent is None else f"{sent / _MEBI:.2f} MiB"
        rows.append([name, f"{computed / _MEBI:.2f} MiB", counted, error, limit, effect.parity])
    return rows


def learned(trainings: Sequence[Scores]) -> Chart:
    """Return each seed's score by wire format, with the noise around fp32's mean."""
    rows = [["training", "wire format", "mean", "seeds", f"less {FP32}", "noise", "verdict"]]
    for scores in trainings:
        for name, values in scores.by_format.items():
            mean, each = statistics.mean(values), ", ".join(f"{v:.3f}" for v in values)
            difference, noise = f"{scores.difference(name):+.3f}", f"± {scores.noise:.3f}"
            quantity = f"{scores.quantity} {mean:.3f}"
            rows.append(
                [scores.title, name, quantity, each, difference, noise, scores.verdict(name)]
            )

    def draw() -> Figure:
        count = len(trainings)
        figure = Figure(figsize=(8.0, 2.9 * count), layout="constrained")
        for axes, scores in zip(np.atleast_1d(figure.subplots(count)), trainings, strict=True):
            _draw_scores(axes, scores)
        figure.supxlabel(
            f"a mark for each seed; grey: the noise around the mean of {FP32}", fontsize="medium"
        )
        return figure

    return Chart("\n".join(map(_learned_title, trainings)), rows, draw)


def _learned_title(scores: Scores) -> str:
    """Return which formats learn less than fp32, without commas inside a name."""
    worse = [name for name in scores.by_format if scores.verdict(name) == "worse"]
    if not worse:
        return f"{scores.title}: every format learns what {FP32} learns"
    if len(worse) == len(scores.by_format) - 1:
        return f"{scores.title}: every other format learns less than {FP32}"
    verb = "learns" if len(worse) == 1 else "learn"
    names = listed(name.replace(", no ", " without ") for name in worse)
    return f"{scores.title}: only {names} {verb} less than {FP32}"


def _draw_scores(axes: Any, scores: Scores) -> None:
    centre = statistics.mean(scores.by_format[FP32])
    low, high = centre - scores.noise, centre + scores.noise
    axes.axhspan(low, high, color=style.PLAIN, alpha=0.3, linewidth=0)
    names = []
    for place, (name, values) in enumerate(scores.by_format.items()):
        names.append(name.replace(", ", ",\n") + f"\nmean {statistics.mean(values):.3f}")
        colour = style.PLAIN if name == FP32 else OURS
        spread = np.linspace(-_SPREAD / 2, _SPREAD / 2, len(values))
        axes.plot(place + spread, values, "o", color=colour)
    axes.set_xticks(range(len(names)), names)
    axes.margins(x=0.08, y=0.15)
    axes.set_title(fitted(_learned_title(scores)), fontsize="medium")
    axes.set_ylabel(scores.quantity)
    axes.grid(alpha=0.3)
