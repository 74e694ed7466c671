"""Plots of communication: bytes by wire format, step times, buckets over time, learning.

Step times are shown by technique, learning by wire format. As in plots.py, each plot has its
alternative text and the rows of a table with the same content. A plot from a lab of hosts says in
its title that the links are emulated.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from gallery_lib.console.table import Rows, seconds
from gallery_lib.measure.communication.bucket_times import Timeline
from gallery_lib.measure.communication.convergence import FP32, Scores
from gallery_lib.measure.communication.strategies import ALONE, PLAIN, Effect, Effects
from gallery_lib.report.plots import COLOURS

EMULATED = "emulated link"
MARKERS = ("o", "s", "^", "D")
_MEBI = 2**20
_GREY = "#999999"


# --------------------------------------------------------------------------------------------------
# Bytes


@dataclass(frozen=True)
class Bytes:
    """What a host sends in a step of one model, by wire format, and the rate of its link."""

    title: str
    parameters: int
    hosts: int
    bits_per_second: int
    sent: Mapping[str, float]

    def link_seconds(self, wire: str) -> float:
        """Return how many seconds the bytes of the format `wire` keep the link busy."""
        return 8 * self.sent[wire] / self.bits_per_second


def bytes_sent(counted: Bytes) -> Figure:
    """Return a figure of what a host sends in a step, with a bar for each format."""
    figure = Figure(figsize=(7.0, 0.9 + 0.45 * len(counted.sent)), layout="constrained")
    axes = figure.subplots()
    values = [size / _MEBI for size in counted.sent.values()]
    bars = axes.barh(list(counted.sent), values, color=COLOURS[0])
    axes.bar_label(bars, [f"{value:.3g}" for value in values], padding=3)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set(
        title=f"Gradients of {counted.title}: what each of {counted.hosts} hosts sends in a step",
        xlabel="MiB, computed",
    )
    return figure


def bytes_text(counted: Bytes) -> str:
    """Return the alternative text of `bytes_sent`."""
    parts = ", ".join(f"{wire} {size / _MEBI:.3g} MiB" for wire, size in counted.sent.items())
    return (
        f"Bar chart of what each of {counted.hosts} hosts sends in a step of {counted.title}, "
        f"computed: {parts}."
    )


def bytes_rows(counted: Bytes) -> Rows:
    """Return the table of `bytes_sent`."""
    rate = f"{counted.bits_per_second / 1e6:g} Mbit/s"
    rows = [["wire format", "sent by each host in a step", "of fp32", f"busy link at {rate}"]]
    exact = next(iter(counted.sent.values()))
    return rows + [
        [
            wire,
            f"{size / _MEBI:.3g} MiB",
            f"{size / exact:.1%}",
            seconds(counted.link_seconds(wire)),
        ]
        for wire, size in counted.sent.items()
    ]


# --------------------------------------------------------------------------------------------------
# Step times


def _speedup(effect: Effect) -> str:
    if effect.ratio is None:
        return "1, by definition"
    return str(effect.ratio)


def waterfall(effects: Effects) -> Figure:
    """Return a figure of each technique's step time: a mark for each step, a bar for the median."""
    figure = Figure(figsize=(7.0, 1.1 + 0.45 * len(effects.ways)), layout="constrained")
    axes = figure.subplots()
    for row, (name, effect) in enumerate(effects.ways.items()):
        lossy = effect.options["wire"] != "exact"
        colour = _GREY if name == ALONE else COLOURS[1] if lossy else COLOURS[0]
        axes.barh(
            row,
            1000 * effect.seconds,
            color=colour,
            hatch="//" if lossy else None,
            edgecolor="white",
        )
        steps = [1000 * step for steps in effect.rounds for step in steps]
        axes.plot(steps, np.full(len(steps), row), "k|", markersize=9)
        label = "" if effect.ratio is None else f"{effect.ratio.ratio:.2f}×"
        axes.annotate(label, (max(steps), row), (6, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(effects.ways)), list(effects.ways))
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.set(
        title=f"Step time, {effects.hosts}, {EMULATED}",
        xlabel="ms; a mark for each step; hatched: the wire format rounds",
    )
    return figure


def waterfall_text(effects: Effects) -> str:
    """Return the alternative text of `waterfall`."""
    parts = [
        f"{name} {seconds(e.seconds)}" + (f", {_speedup(e)} {PLAIN}" if e.ratio else "")
        for name, e in effects.ways.items()
    ]
    return f"Bar chart of step times on {effects.hosts} with an {EMULATED}: {'; '.join(parts)}."


def waterfall_rows(effects: Effects) -> Rows:
    """Return the table of `waterfall`."""
    rows = [
        [
            f"technique ({EMULATED})",
            "step time p50",
            f"{PLAIN} over it ({effects.confidence:.0%} interval)",
            "verdict",
        ]
    ]
    return rows + [
        [name, seconds(e.seconds), _speedup(e), e.ratio.verdict if e.ratio else "baseline"]
        for name, e in effects.ways.items()
    ]


def parity_rows(effects: Effects) -> Rows:
    """Return a table of what each technique sends, and how far its gradients are off.

    The error of a gradient is its distance from the mean in float64.
    """
    rows = [
        [
            f"technique ({EMULATED})",
            "sent by a host in a step, computed",
            "counted by its network card",
            "error of the gradient",
            "limit",
            "parity",
        ]
    ]
    for name, effect in effects.ways.items():
        counted = (
            "not counted" if effect.sent_bytes is None else f"{effect.sent_bytes / _MEBI:.2f} MiB"
        )
        error, limit = (
            ("–" if value is None else f"{value:.1g}")
            for value in (effect.gradient_error, effect.limit)
        )
        rows.append(
            [
                name,
                f"{effect.computed_bytes / _MEBI:.2f} MiB",
                counted,
                error,
                limit if name != ALONE else "–",
                effect.parity,
            ]
        )
    return rows


# --------------------------------------------------------------------------------------------------
# Buckets


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
        axes.axvspan(0, 1000 * line.forward, color=_GREY, alpha=0.45, linewidth=0)
        axes.axvspan(
            1000 * line.forward,
            1000 * max(ready for _, ready, _ in line.buckets),
            color=_GREY,
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


# --------------------------------------------------------------------------------------------------
# Learning


def learned(trainings: Sequence[Scores]) -> Figure:
    """Return a figure of each seed's score by wire format, with the noise around fp32's mean."""
    figure = Figure(figsize=(7.0, 2.6 * len(trainings)), layout="constrained")
    for axes, scores in zip(np.atleast_1d(figure.subplots(len(trainings))), trainings, strict=True):
        centre = statistics.mean(scores.by_format[FP32])
        axes.axhspan(
            centre - scores.noise, centre + scores.noise, color=_GREY, alpha=0.3, linewidth=0
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
