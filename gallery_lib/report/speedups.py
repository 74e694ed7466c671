"""Speed-ups of several notebooks as a picture and a table, and that of one as a small picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from gallery_lib.console.table import Rows
from gallery_lib.stats import Ratio

_COLOURS = {"faster": "#0072B2", "no measurable difference": "#999999", "slower": "#D55E00"}
_GREY = "#CCCCCC"
_HEIGHT = 0.62
HERE = "this machine"


@dataclass(frozen=True)
class Speedup:
    """Speed-up of a notebook on one process, and where it was measured.

    `ratio` is None where parity failed.
    """

    name: str  # of the notebook
    title: str
    ratio: Ratio | None
    verdict: str
    conditions: str  # precision and sizes
    machine: str  # HERE, or the name of another machine
    date: str  # ISO 8601
    code: str | None = None  # version of the code that was measured; None: not recorded
    busy: bool = False  # whether the machine had other work during the measurement

    @property
    def in_words(self) -> str:
        """Return the speed-up with its interval, or the verdict without a ratio.

        A verdict other than `faster` stands behind the interval.
        """
        if self.ratio is None:
            return self.verdict
        return f"{self.ratio}" + ("" if self.verdict == "faster" else f", {self.verdict}")


def rows(speedups: Sequence[Speedup]) -> Rows:
    """Return a table with a line for each notebook, and a link to it."""
    header = ["notebook", "speed-up (interval)", "measured with", "measured on", "date"]
    return [
        header,
        *(
            [f"[{s.title}]({s.name}.ipynb)", s.in_words, s.conditions, s.machine, s.date[:10]]
            for s in speedups
        ),
    ]


def figure(speedups: Sequence[Speedup]) -> Figure:
    """Return a figure with a bar per notebook, its interval, and a line for PyTorch eager.

    A bar is hatched where another machine was measured.
    """
    drawn = Figure(figsize=(7.0, 1.0 + 0.34 * len(speedups)), layout="constrained")
    axes = drawn.subplots()
    for place, one in enumerate(speedups):
        _bar(axes, place, one, hatched=one.machine != HERE)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set(
        yticks=range(len(speedups)),
        yticklabels=[s.title for s in speedups],
        xlabel="times as fast as PyTorch eager (the line)",
    )
    axes.set_ylim(len(speedups) - 0.4, -0.6)  # the first at the top
    axes.set_xlim(0, 1.25 * max([1.0, *(s.ratio.high for s in speedups if s.ratio)]))
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    notes = (
        ["grey: no measurable difference"]
        if any(s.verdict == "no measurable difference" for s in speedups)
        else []
    )
    notes += ["hatched: another machine"] if any(s.machine != HERE for s in speedups) else []
    drawn.suptitle(
        "\n".join(filter(None, ["Accelerated backend over PyTorch eager", "; ".join(notes)])),
        fontsize=10,
    )
    return drawn


def _bar(axes: Any, place: float, one: Speedup, *, hatched: bool) -> None:
    if one.ratio is None:
        axes.text(0.05, place, one.verdict, va="center")
        return
    error = [[one.ratio.ratio - one.ratio.low], [one.ratio.high - one.ratio.ratio]]
    colour, hatch = _COLOURS.get(one.verdict, _GREY), "///" if hatched else None
    axes.barh(
        place,
        one.ratio.ratio,
        height=_HEIGHT,
        color=colour,
        hatch=hatch,
        edgecolor="white",
        xerr=error,
        capsize=3,
    )
    axes.text(one.ratio.high, place, f"  {one.ratio.ratio:.2f}×", va="center")


def figure_text(speedups: Sequence[Speedup]) -> str:
    """Return the alternative text of `figure`."""
    machines = dict.fromkeys(s.machine for s in speedups)
    parts = [
        f"on {machine}: "
        + "; ".join(f"{s.title} {s.in_words}" for s in speedups if s.machine == machine)
        for machine in machines
    ]
    return (
        "Bar chart of speed-ups over PyTorch eager with their intervals, "
        + ". And ".join(parts)
        + "."
    )


def card(one: Speedup) -> Figure:
    """Return a small figure of one notebook's result.

    It has a bar for PyTorch eager at 1, and one for the accelerated backend with its interval.
    """
    drawn = Figure(figsize=(3.2, 1.5), layout="constrained")
    axes = drawn.subplots()
    axes.barh(0, 1.0, height=_HEIGHT, color=_GREY)
    _bar(axes, 1, one, hatched=False)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set(yticks=[0, 1], yticklabels=["PyTorch\neager", "accele-\nrated"], title=one.title)
    axes.set_ylim(1.5, -0.5)
    axes.set_xlim(0, 1.35 * max(1.0, one.ratio.high if one.ratio else 1.0))
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(one.conditions, fontsize=8)
    return drawn


def card_text(one: Speedup) -> str:
    """Return the alternative text of `card`."""
    return (
        f"{one.title}: accelerated backend over PyTorch eager, {one.in_words}; {one.conditions}, "
        f"on {one.machine}."
    )
