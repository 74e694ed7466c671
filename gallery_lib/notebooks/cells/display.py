"""Show Markdown and figures as outputs of a cell that need no trust.

The outputs are Markdown, PNG and plain text. They need neither JavaScript nor a trusted notebook.
"""

from __future__ import annotations

import io
from typing import Any

from gallery_lib.console.table import Rows
from gallery_lib.report.folded import figure_in_words, unfolded


def display_markdown(text: str) -> None:
    """Show Markdown; its plain-text form is the same text, unfolded."""
    from IPython.display import display

    display({"text/markdown": text, "text/plain": unfolded(text)}, raw=True)


def display_figure(figure: Any, alternative: str, rows: Rows | None) -> None:
    """Show a matplotlib figure as PNG with alternative text, and a folded part below it.

    The folded part holds the alternative text and a table. JupyterLab leaves out the alternative
    text of an image, so the text stands there for readers who need it.

    Args:
        figure: the matplotlib figure.
        alternative: the alternative text.
        rows: rows of a table with the same content; None where the table follows.
    """
    from IPython.display import display

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    display(
        {"image/png": buffer.getvalue(), "text/plain": alternative},
        metadata={"image/png": {"alt": alternative}},
        raw=True,
    )
    display_markdown(figure_in_words(alternative, rows))
