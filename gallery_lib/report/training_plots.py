"""Loss curves of training in a notebook, with a title that says whether the losses fell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean

from matplotlib.figure import Figure

from gallery_lib.console.table import Rows, number
from gallery_lib.report.plots import COLOURS, LINES, labelled_figure

Curves = Mapping[str, Sequence[float]]
_FELL = 0.99
"""Part of the first loss that the last ones must be below, for a loss that fell."""
_LAST = 3


def _last(losses: Sequence[float]) -> float:
    """Return the mean of the last losses, of which one alone says little."""
    return mean(losses[-min(_LAST, max(1, len(losses) - 1)) :])


def fell(losses: Sequence[float]) -> bool:
    """Return whether the mean of the last losses is finite and below the first."""
    return math.isfinite(_last(losses)) and _last(losses) < _FELL * losses[0]


def title(curves: Curves) -> str:
    """Return what the curves say: `Both losses fell, from 6.9 to 4.2 and 4.3`."""
    failed = [name for name, losses in curves.items() if not fell(losses)]
    ends = " and ".join(dict.fromkeys(number(_last(losses)) for losses in curves.values()))
    start = number(next(iter(curves.values()))[0])
    if failed:
        which = "No loss fell" if len(failed) == len(curves) else f"The loss of {failed[0]} did not"
        return f"{which}: from {start} to {ends}".replace("did not:", "did not fall:")
    which = "The loss" if len(curves) == 1 else "Both losses" if len(curves) == 2 else "All losses"
    return f"{which} fell, from {start} to {ends}"


def figure(curves: Curves) -> Figure:
    """Return a figure of the losses, step by step."""
    plot, axes = labelled_figure(title(curves), "step", "loss")
    for (name, losses), colour, line in zip(curves.items(), COLOURS, LINES, strict=False):
        axes.plot(
            range(1, len(losses) + 1), losses, color=colour, linestyle=line, marker=".", label=name
        )
    axes.legend()
    return plot


def text(curves: Curves) -> str:
    """Return the alternative text of `figure`."""
    parts = [
        f"{name} from {number(losses[0])} to {number(losses[-1])}"
        for name, losses in curves.items()
    ]
    return f"Line plot of the loss of each step. {title(curves)}: {'; '.join(parts)}."


def rows(curves: Curves) -> Rows:
    """Return the table of `figure`, a row for each step."""
    steps = max(map(len, curves.values()))
    return [
        ["step", *curves],
        *(
            [
                str(step + 1),
                *(number(c[step]) if step < len(c) else "" for c in curves.values()),
            ]
            for step in range(steps)
        ),
    ]
