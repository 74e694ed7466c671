"""The language of all figures: a colour for who is shown, bars with intervals, sharp files.

A `Chart` is a figure with its title and the table of what it shows. The alternative text is made of
title and rows, so what is drawn, what is read aloud and what stands in the table is the same.

Plain PyTorch is grey, ours is blue, others are orange, in each figure of a notebook, of README and
of the site. The three are told apart in colour blindness, and have a contrast of at least 3:1 to
the background. That is white in the file, so figures can be read on dark pages. Line
styles differ as well.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from gallery_lib.console.text import Rows
from gallery_lib.stats import Ratio

# Colours of plain PyTorch (also: DDP's own way, exact numbers), of this package, of others.
PLAIN, OURS, OTHERS = "#8C8C8C", "#0072B2", "#D55E00"
COLOURS = (PLAIN, OURS, OTHERS)
LOOKS: tuple[dict[str, Any], ...] = (
    {"color": PLAIN, "linestyle": "-", "linewidth": 3.2},
    {"color": OURS, "linestyle": "--", "linewidth": 1.6},
    {"color": OTHERS, "linestyle": ":", "linewidth": 1.6},
)
"""Lines of the three. That of plain PyTorch is broad, so it is seen where ours lies upon it."""
# Colours of one thing of ours in several sizes, from light to dark.
SHADES = ("#5B9BC8", OURS, "#004B77", "#5E3C99", "#2B1B4A", "#000000")
DOTS_PER_INCH = 200
_CSS_PIXELS_PER_INCH = 100
_LETTERS_PER_INCH = 12
# End of the axis, in lengths of the longest bar. A whisker that is longer ends in an arrow.
_LONGEST_WHISKER = 1.5
# Rows in an alternative text: a longer one is tiring to hear, and the table has all of them.
_ROWS_READ = 12
_MARKUP = re.compile(r"\[([^\]]*)\]\([^)]*\)|\\(.)")  # a link, and an escaped character


@dataclass(frozen=True)
class Chart:
    """A figure: its title says what came out, and its rows are those of a Markdown table."""

    title: str
    rows: Rows
    draw: Callable[[], Figure]

    @property
    def alternative_text(self) -> str:
        """Return the title and the first rows as text, with the names of the columns once."""
        header, *body = self.rows
        read = [f"{name}: {', '.join(filter(None, cells))}" for name, *cells in body[:_ROWS_READ]]
        if more := len(body) - len(read):
            read.append(f"{more} more rows are in the table")
        title, columns = "; ".join(self.title.splitlines()), ", ".join(filter(None, header))
        return _MARKUP.sub(r"\1\2", f"{title}. Columns: {columns}. {'; '.join(read)}.")


def one_panel(
    title: str,
    rows: Rows,
    draw: Callable[[Any], None],
    size: tuple[float, float] = (7.0, 3.6),
    **labels: str,
) -> Chart:
    """Return a chart with one pair of axes, which `draw` draws into; they have title and labels.

    The size is in inches; `labels` are `xlabel` and `ylabel`.
    """

    def figure() -> Figure:
        plot = Figure(figsize=size, layout="constrained")
        axes = plot.subplots()
        axes.set(**labels)
        axes.set_title(fitted(title, size[0] - 0.8), fontsize="medium")
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
        draw(axes)
        return plot

    return Chart(title, rows, figure)


def listed(names: Iterable[str]) -> str:
    """Return the names as one lists them in a sentence: `bf16, fp16 and int8`."""
    *others, end = [*names] or [""]
    return f"{', '.join(others)} and {end}" if others else end


def save(figure: Figure, target: Any) -> None:
    """Write the figure as PNG to a path or a stream, sharp on a screen of high density."""
    figure.savefig(target, format="png", dpi=DOTS_PER_INCH, facecolor="white")


def shown_size(figure: Figure) -> dict[str, int]:
    """Return width and height at which a page shows the file, in its own pixels."""
    width, height = (round(_CSS_PIXELS_PER_INCH * inches) for inches in figure.get_size_inches())
    return {"width": width, "height": height}


def fitted(title: str, inches: float = 6.2) -> str:
    """Return the title in lines that fit above axes of this width, in a font of 10 points."""
    width = int(_LETTERS_PER_INCH * inches)
    return "\n".join(textwrap.fill(line, width) for line in title.splitlines())


@dataclass(frozen=True)
class Bar:
    """A bar of `ratio_bars`: its name, its length with an interval, and what stands for a gap."""

    name: str
    ratio: Ratio | None
    missing: str = "not measured"


def ratio_bars(
    bars: Sequence[Bar], title: str, over: str, *, plain: str | None = None
) -> tuple[Figure, Any]:
    """Return a figure of how many times as fast each bar is as `over`, and its axes.

    A bar whose interval holds 1 is hollow: no difference was measurable. A long interval ends in
    an arrow, with its true end beside it. `plain` names a grey bar of length 1 above the others.
    """
    names = [*([plain] if plain else []), *(bar.name for bar in bars)]
    figure = Figure(figsize=(8.0, 1.3 + 0.31 * len(names)), layout="constrained")
    axes = figure.subplots()
    if plain:
        axes.barh(0, 1.0, height=0.6, color=PLAIN)
    longest = max([1.0, *(bar.ratio.ratio for bar in bars if bar.ratio)])
    for y, bar in enumerate(bars, len(names) - len(bars)):
        _draw_bar(axes, y, bar, _LONGEST_WHISKER * longest)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)  # the first at the top
    ends = [min(bar.ratio.high, _LONGEST_WHISKER * longest) for bar in bars if bar.ratio]
    axes.set_xlim(0, 1.22 * max([longest, *ends]))
    hollow = any(bar.ratio and not measurable(bar.ratio) for bar in bars)
    notes = [f"times as fast as {over} (the line at 1), with intervals"]
    notes += ["hollow: the interval holds 1, so no difference is measurable"] if hollow else []
    axes.set_xlabel("\n".join(notes))
    figure.suptitle(fitted(title, 7.6), fontsize="medium")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    return figure, axes


def _draw_bar(axes: Any, y: float, bar: Bar, limit: float) -> None:
    """Draw one bar of ours with its interval as far as `limit`, and its length beside it."""
    ratio = bar.ratio
    if ratio is None:
        axes.text(0.03, y, bar.missing, va="center", fontsize="small", color="dimgray")
        return
    filled = measurable(ratio)
    axes.barh(
        y,
        ratio.ratio,
        height=0.6,
        color=OURS if filled else "white",
        edgecolor=OURS,
        linewidth=0.0 if filled else 1.4,
    )
    end = min(ratio.high, limit)
    axes.plot([ratio.low, end], [y, y], color="black", linewidth=0.9)
    axes.plot(ratio.low, y, color="black", marker="|", markersize=6)
    axes.plot(end, y, color="black", marker="|" if end == ratio.high else ">", markersize=6)
    cut = "" if end == ratio.high else f" (to {ratio.high:.3g})"
    axes.annotate(
        f"{ratio.ratio:.2f}×{cut}",
        (max(end, ratio.ratio), y),
        (6, 0),
        textcoords="offset points",
        va="center",
        fontsize="small",
    )


def measurable(ratio: Ratio) -> bool:
    """Return whether the interval leaves 1 out."""
    return ratio.verdict != "no measurable difference"
