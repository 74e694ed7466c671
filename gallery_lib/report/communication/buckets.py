"""Plot of one step's buckets over time, from ready to averaged, for each technique."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from gallery_lib.console.table import Rows, seconds
from gallery_lib.measure.communication.bucket_times import Timeline
from gallery_lib.measure.communication.strategies import PLAIN, Effects
from gallery_lib.report.communication import EMULATED, GREY
from gallery_lib.report.plots import COLOURS
from gallery_lib.report.sentences import sentence

_HIDDEN = 0.1
"""Part of a step that waiting must be below, for communication that is as good as hidden."""


def _timelines(effects: Effects) -> dict[str, Timeline]:
    return {
        name: effect.timeline
        for name, effect in effects.ways.items()
        if effect.timeline is not None
    }


def _last_ready(line: Timeline) -> float:
    """Return when the backward pass has computed its last gradient."""
    return max(ready for _, ready, _ in line.buckets)


def _last_averaged(line: Timeline) -> float:
    return max(arrived for _, _, arrived in line.buckets)


def _wait(line: Timeline) -> float:
    """Return for how long a step waits for means when all gradients are computed."""
    return _last_averaged(line) - _last_ready(line)


def _least(lines: dict[str, Timeline]) -> str:
    return min(lines, key=lambda name: _wait(lines[name]))


def buckets_title(effects: Effects) -> str:
    """Return what the bars say: how long DDP waits for its last bucket, and what waits least."""
    lines = _timelines(effects)
    least = _least(lines)
    other = "no technique less" if least == PLAIN else f"{least} {seconds(_wait(lines[least]))}"
    waits = f"waits {seconds(_wait(lines[PLAIN]))} for its last bucket"
    return f"{PLAIN} {waits}, {other}\none step of each, {EMULATED}"


def buckets(effects: Effects) -> Figure:
    """Return a figure of one step of each technique, over time.

    The forward and backward pass are grey. A bar per bucket runs from the moment when the bucket is
    ready to the arrival of its mean, and has the bucket's size beside it.
    """
    lines = _timelines(effects)
    heights = [max(3, len(line.buckets)) for line in lines.values()]
    figure = Figure(figsize=(8.0, 0.2 * sum(heights) + 1.3), layout="constrained")
    panels = np.atleast_1d(figure.subplots(len(lines), sharex=True, height_ratios=heights))
    for axes, (name, line) in zip(panels, lines.items(), strict=True):
        _draw(axes, name, line)
    panels[0].set_title(buckets_title(effects))
    panels[0].set_xlim(0, 1100 * max(map(_last_averaged, lines.values())))
    figure.supxlabel(
        (
            "ms since the step began; grey: forward pass; light: backward pass, until the last "
            "bucket is ready"
        ),
        fontsize="medium",
    )
    return figure


def _draw(axes: Any, name: str, line: Timeline) -> None:
    """Draw one technique's step: its passes, and a bar for each bucket with its size."""
    count = len(line.buckets)
    axes.axvspan(0, 1000 * line.forward, color=GREY, alpha=0.45, linewidth=0)
    axes.axvspan(1000 * line.forward, 1000 * _last_ready(line), color=GREY, alpha=0.2, linewidth=0)
    for row, (size, ready, arrived) in enumerate(line.buckets):
        axes.barh(
            row,
            1000 * (arrived - ready),
            left=1000 * ready,
            color=COLOURS[row % 2],
            edgecolor="white",
        )
        axes.annotate(
            f"{size:.2g} MiB",
            (1000 * arrived, row),
            (3, 0),
            textcoords="offset points",
            va="center",
            fontsize="x-small",
        )
    axes.set_ylim(count - 0.4, -0.6)
    axes.set_yticks([])
    axes.set_ylabel(name, rotation=0, ha="right", va="center")


def buckets_text(effects: Effects) -> str:
    """Return the alternative text of `buckets`."""
    parts = [
        (
            f"{name}: {len(line.buckets)} buckets, the last averaged after "
            f"{seconds(_last_averaged(line))}"
        )
        for name, line in _timelines(effects).items()
    ]
    return (
        f"Bars over time, one for each bucket of one step on an {EMULATED}: {'; '.join(parts)}. "
        f"{sentence(buckets_title(effects))}"
    )


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
            "waits for it",
        ]
    ]
    for name, line in _timelines(effects).items():
        sizes, ready, _ = zip(*line.buckets, strict=True)
        moments = [min(ready), max(ready), _last_averaged(line), _wait(line)]
        rows.append(
            [
                name,
                str(len(sizes)),
                ", ".join(f"{size:.2g}" for size in sizes),
                *map(seconds, moments),
            ]
        )
    return rows


def buckets_advice(effects: Effects) -> str:
    """Return what to do about the wait: send earlier, send fewer bytes, or nothing.

    Sending earlier can hide no more than the backward pass takes.
    """
    line = _timelines(effects)[PLAIN]
    wait, end = _wait(line), _last_averaged(line)
    if wait < _HIDDEN * end:
        return (
            f"Change nothing: {PLAIN} waits {seconds(wait)} of {seconds(end)}, so the backward "
            "pass hides nearly all of what is sent."
        )
    backward = _last_ready(line) - line.forward
    facts = f"{PLAIN} waits {seconds(wait)}, and its backward pass takes {seconds(backward)}."
    if wait > backward:
        return (
            f"Send fewer bytes, or use a faster link. {facts} Sending earlier hides at most as "
            "much as the backward pass takes, which is less than the wait."
        )
    return (
        f"Send earlier, with small buckets, where the step times above say that it gains. {facts} "
        "The backward pass is long enough to hide the wait."
    )
