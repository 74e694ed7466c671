"""Plot of what models learned with each wire format, seed by seed, with the noise of fp32."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from gallery_lib.console.table import Rows
from gallery_lib.measure.communication.convergence import FP32, Scores
from gallery_lib.report.communication import GREY
from gallery_lib.report.plots import COLOURS

MARKERS = ("o", "s", "^", "D")


def learned(trainings: Sequence[Scores]) -> Figure:
    """Return a figure of each seed's score by wire format, with the noise around fp32's mean."""
    figure = Figure(figsize=(7.0, 2.6 * len(trainings)), layout="constrained")
    for axes, scores in zip(np.atleast_1d(figure.subplots(len(trainings))), trainings, strict=True):
        centre = statistics.mean(scores.by_format[FP32])
        axes.axhspan(
            centre - scores.noise, centre + scores.noise, color=GREY, alpha=0.3, linewidth=0
        )
        for place, values in enumerate(scores.by_format.values()):
            for seed, value in enumerate(values):
                axes.plot(
                    place,
                    value,
                    MARKERS[seed % len(MARKERS)],
                    color=COLOURS[seed % len(COLOURS)],
                    alpha=0.8,
                )
        axes.set_xticks(
            range(len(scores.by_format)), [name.replace(", ", ",\n") for name in scores.by_format]
        )
        axes.set(title=scores.title, ylabel=scores.quantity)
        axes.grid(alpha=0.3)
    figure.supxlabel(
        f"a mark for each seed; grey: the noise around the mean of {FP32}", fontsize="medium"
    )
    return figure


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
    return f"Dots for each seed by wire format. {'. '.join(parts)}."


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
