"""Plot of what models learned with each wire format, seed by seed, with the noise of fp32."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from gallery_lib.console.table import Rows
from gallery_lib.measure.communication.convergence import FP32, WITHOUT_FEEDBACK, Scores
from gallery_lib.report.communication import GREY
from gallery_lib.report.plots import COLOURS
from gallery_lib.report.sentences import listed, sentence

MARKERS = ("o", "s", "^", "D")
_SPREAD = 0.36
"""Width over which the marks of one format lie side by side."""


def _worse(scores: Scores) -> list[str]:
    return [name for name in scores.by_format if scores.verdict(name) == "worse"]


def learned_title(scores: Scores) -> str:
    """Return what the marks say: which formats learn less than fp32."""
    worse = _worse(scores)
    if not worse:
        return f"{scores.title}: every format learns what {FP32} learns"
    if len(worse) == len(scores.by_format) - 1:
        return f"{scores.title}: every other format learns less than {FP32}"
    verb = "learns" if len(worse) == 1 else "learn"
    return f"{scores.title}: only {_named(worse)} {verb} less than {FP32}"


def _named(names: Sequence[str], last: str = "and") -> str:
    """Return the formats as one lists them, without commas inside a name."""
    return listed((name.replace(", no ", " without ") for name in names), last)


def learned(trainings: Sequence[Scores]) -> Figure:
    """Return a figure of each seed's score by wire format, with the noise around fp32's mean."""
    figure = Figure(figsize=(8.0, 2.9 * len(trainings)), layout="constrained")
    for axes, scores in zip(np.atleast_1d(figure.subplots(len(trainings))), trainings, strict=True):
        centre = statistics.mean(scores.by_format[FP32])
        axes.axhspan(
            centre - scores.noise, centre + scores.noise, color=GREY, alpha=0.3, linewidth=0
        )
        for place, values in enumerate(scores.by_format.values()):
            _draw(axes, place, values)
        names = [
            name.replace(", ", ",\n") + f"\nmean {statistics.mean(values):.3f}"
            for name, values in scores.by_format.items()
        ]
        axes.set_xticks(range(len(names)), names)
        axes.margins(x=0.08, y=0.15)
        axes.set(title=learned_title(scores), ylabel=scores.quantity)
        axes.grid(alpha=0.3)
    figure.supxlabel(
        f"a mark for each seed, with its number; grey: the noise around the mean of {FP32}",
        fontsize="medium",
    )
    return figure


def _draw(axes: Any, place: int, values: Sequence[float]) -> None:
    """Draw the scores of one format side by side, each with the number of its seed."""
    for seed, value in enumerate(values):
        x = place + _SPREAD * ((seed + 0.5) / len(values) - 0.5)
        axes.plot(
            x, value, MARKERS[seed % len(MARKERS)], color=COLOURS[seed % len(COLOURS)], alpha=0.8
        )
        axes.annotate(
            str(seed),
            (x, value),
            (0, -6),
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize="x-small",
        )


def learned_text(trainings: Sequence[Scores]) -> str:
    """Return the alternative text of `learned`."""
    parts = []
    for scores in trainings:
        means = ", ".join(
            f"{name} {statistics.mean(values):.3f}" for name, values in scores.by_format.items()
        )
        parts.append(
            f"{scores.title}, mean {scores.quantity}: {means}; noise ± {scores.noise:.3f} around "
            f"{FP32}"
        )
    findings = " ".join(sentence(learned_title(scores)) for scores in trainings)
    return f"Dots for each seed by wire format. {'. '.join(parts)}. {findings}"


def learned_rows(trainings: Sequence[Scores]) -> Rows:
    """Return the table of `learned`."""
    rows = [["training", "wire format", "mean", "seeds", f"less {FP32}", "noise", "verdict"]]
    for scores in trainings:
        for name, values in scores.by_format.items():
            first = [
                scores.title,
                name,
                f"{scores.quantity} {statistics.mean(values):.3f}",
                ", ".join(f"{v:.3f}" for v in values),
            ]
            rows.append(
                [
                    *first,
                    f"{scores.difference(name):+.3f}",
                    f"± {scores.noise:.3f}",
                    scores.verdict(name),
                ]
            )
    return rows


def learning_advice(trainings: Sequence[Scores]) -> str:
    """Return which formats may be used, as far as these trainings tell, and which not."""
    formats = dict.fromkeys(
        name for scores in trainings for name in scores.by_format if name != FP32
    )
    worse = {name for scores in trainings for name in _worse(scores)}
    usable = [name for name in formats if name not in worse and name != WITHOUT_FEEDBACK]
    unusable = [name for name in formats if name in worse and name != WITHOUT_FEEDBACK]
    text = (
        f"Use {_named(usable, 'or')} where it is faster: no training here learns less with it."
        if usable
        else f"Stay with {FP32}: every other format learns less in a training here."
    )
    if unusable and usable:
        text += f" Do not use {_named(unusable, 'or')}: a training here learns less with it."
    if WITHOUT_FEEDBACK in worse:
        text += " Keep error feedback on: without it, int8 learns less."
    elif WITHOUT_FEEDBACK in formats:
        text += " Keep error feedback on; these trainings do not show what it is for."
    seeds = min(len(values) for scores in trainings for values in scores.by_format.values())
    return (
        f"{text} Then try the format on your own training: this is a small network and {seeds} "
        "seeds."
    )
