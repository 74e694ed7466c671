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
"""Part of the first pass's loss that the second pass's must be below, for a loss that fell."""


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


def title(curves: Curves) -> str:
    """Return what the curves say: `Both losses fell in the second pass, from 6.9 to 4.2`."""
    failed = [name for name, losses in curves.items() if not fell(losses)]
    passes = [_passes(losses) for losses in curves.values()]
    start, end = (
        " and ".join(dict.fromkeys(number(value) for value in values))
        for values in zip(*passes, strict=True)
    )
    change = f"from {start} to {end}"
    if not failed:
        which = "The loss" if len(curves) == 1 else "Both losses"
        return f"{which} fell in the second pass, {change}"
    if len(failed) == len(curves):
        return f"No loss fell in the second pass: {change}"
    return f"The loss of {failed[0]} did not fall in the second pass: {change}"


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
