"""Show Markdown and figures as outputs of a cell that need no trust.

The outputs are Markdown, PNG and plain text. They need neither JavaScript nor a trusted notebook.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gallery_lib.console.text import Rows, markdown_table
from gallery_lib.report.tables import folded, unfolded

if TYPE_CHECKING:
    from gallery_lib.report.style import Chart


def display_markdown(text: str) -> None:
    """Show Markdown; its plain-text form is the same text, unfolded."""
    from IPython.display import display

    display({"text/markdown": text, "text/plain": unfolded(text)}, raw=True)


def display_table(rows: Rows) -> None:
    """Show rows as a table."""
    display_markdown(markdown_table(rows))


@dataclass(frozen=True)
class NotMeasured:
    """Placeholder for figures that this machine cannot give, with the reason."""

    reason: str

    def show(self) -> None:
        """Show the reason."""
        display_markdown(f"**Not measured**: {self.reason}")


def display_chart(chart: Chart, *, fold: bool = True) -> None:
    """Show a chart as PNG with alternative text, and its title and table as text below it.

    JupyterLab leaves out the alternative text of an image, so readers who need it have title and
    table as text; with `fold` a reader has to open it.
    """
    from IPython.display import display

    from gallery_lib.report import style

    figure, buffer = chart.draw(), io.BytesIO()
    style.save(figure, buffer)
    words = chart.alternative_text
    display(
        {"image/png": buffer.getvalue(), "text/plain": words},
        metadata={"image/png": {"alt": words, **style.shown_size(figure)}},
        raw=True,
    )
    content = f"{chart.title}.\n\n{markdown_table(chart.rows)}"
    display_markdown(folded("The same as a table", content) if fold else content)
