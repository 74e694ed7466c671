"""A chart: a figure with its title, and the table of what it shows.

The rows are made once. The alternative text is made of the title and the rows, so what is drawn,
what is read aloud and what stands in the table is the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from gallery_lib.console.table import Rows
from gallery_lib.report.style import fitted

_ROWS_READ = 12
"""Rows in an alternative text: a longer one is tiring to hear, and the table has all of them."""
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_ESCAPED = re.compile(r"\\(.)")


@dataclass(frozen=True)
class Chart:
    """A figure: its title says what came out, and its rows are those of a Markdown table."""

    title: str
    rows: Rows
    draw: Callable[[], Figure]

    @property
    def alternative_text(self) -> str:
        """Return the title and the rows as one text."""
        return alternative_text(self.title, self.rows)


def alternative_text(title: str, rows: Rows) -> str:
    """Return a title and the first rows of a table as text, with the names of the columns once.

    Empty cells are left out.
    """
    header, *body = rows
    read = [f"{name}: {', '.join(filter(None, cells))}" for name, *cells in body[:_ROWS_READ]]
    if more := len(body) - len(read):
        read.append(f"{more} more rows are in the table")
    columns = ", ".join(filter(None, header))
    text = f"{'; '.join(title.splitlines())}. Columns: {columns}. {'; '.join(read)}."
    return _ESCAPED.sub(r"\1", _LINK.sub(r"\1", text))


def one_panel(
    title: str,
    rows: Rows,
    draw: Callable[[Any], None],
    size: tuple[float, float] = (7.0, 3.6),
    **labels: str,
) -> Chart:
    """Return a chart with one pair of axes, which `draw` draws into.

    Args:
        title: what came out.
        rows: the table.
        draw: what draws the content; the axes have their title and labels already.
        size: width and height in inches.
        **labels: names of the axes, `xlabel` and `ylabel`.
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
