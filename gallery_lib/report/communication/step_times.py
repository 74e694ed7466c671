"""Plot of step times by technique, with the speed-up of each over DDP's own averaging."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from gallery_lib.console.table import Rows, seconds
from gallery_lib.measure.communication.strategies import ALONE, PLAIN, Effect, Effects
from gallery_lib.report.communication import EMULATED, GREY
from gallery_lib.report.plots import COLOURS


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
        colour = GREY if name == ALONE else COLOURS[1] if lossy else COLOURS[0]
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
