"""Plot of one step's buckets over time, from ready to averaged, for each technique."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from gallery_lib.console.table import Rows, seconds
from gallery_lib.measure.communication.bucket_times import Timeline
from gallery_lib.measure.communication.strategies import Effects
from gallery_lib.report.communication import EMULATED, GREY
from gallery_lib.report.plots import COLOURS


def _timelines(effects: Effects) -> dict[str, Timeline]:
    return {
        name: effect.timeline
        for name, effect in effects.ways.items()
        if effect.timeline is not None
    }


def buckets(effects: Effects) -> Figure:
    """Return a figure of one step of each technique, over time.

    The forward and backward pass are grey. A bar per bucket runs from the moment when the bucket is
    ready to the arrival of its mean.
    """
    lines = _timelines(effects)
    figure = Figure(figsize=(7.0, 0.75 * len(lines) + 1.1), layout="constrained")
    panels = np.atleast_1d(figure.subplots(len(lines), sharex=True))
    for axes, (name, line) in zip(panels, lines.items(), strict=True):
        count = len(line.buckets)
        axes.axvspan(0, 1000 * line.forward, color=GREY, alpha=0.45, linewidth=0)
        axes.axvspan(
            1000 * line.forward,
            1000 * max(ready for _, ready, _ in line.buckets),
            color=GREY,
            alpha=0.2,
            linewidth=0,
        )
        for row, (_, ready, arrived) in enumerate(line.buckets):
            axes.barh(
                row,
                1000 * (arrived - ready),
                left=1000 * ready,
                color=COLOURS[row % 2],
                edgecolor="white",
            )
        axes.set_ylim(count - 0.4, -0.6)
        axes.set_yticks([])
        axes.set_ylabel(name, rotation=0, ha="right", va="center")
    panels[0].set_title(f"A step's buckets, from ready to averaged, {EMULATED}")
    figure.supxlabel(
        (
            "ms since the step began; grey: forward pass; light: backward pass, until the last "
            "bucket is ready"
        ),
        fontsize="medium",
    )
    return figure


def buckets_text(effects: Effects) -> str:
    """Return the alternative text of `buckets`."""
    parts = [
        (
            f"{name}: {len(line.buckets)} buckets, the last averaged after "
            f"{seconds(max(row[2] for row in line.buckets))}"
        )
        for name, line in _timelines(effects).items()
    ]
    return f"Bars over time, one for each bucket of one step on an {EMULATED}: {'; '.join(parts)}."


def buckets_rows(effects: Effects) -> Rows:
    """Return the table of `buckets`."""
    rows = [
        [
            f"technique ({EMULATED})",
            "buckets",
            "MiB in them",
            "first ready after",
            "last ready after",
            "last averaged after",
        ]
    ]
    for name, line in _timelines(effects).items():
        sizes, ready, arrived = zip(*line.buckets, strict=True)
        moments = [min(ready), max(ready), max(arrived)]
        rows.append(
            [
                name,
                str(len(sizes)),
                ", ".join(f"{size:.2g}" for size in sizes),
                *map(seconds, moments),
            ]
        )
    return rows
