"""Show Markdown and figures as outputs of a cell that need no trust.

The outputs are Markdown, PNG and plain text. They need neither JavaScript nor a trusted notebook.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gallery_lib.console.table import Rows, markdown_table
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


def outputs_of(show: Callable[[], None]) -> list[dict[str, Any]]:
    """Return what `show` displays, as plain values for `show_outputs`, instead of displaying it.

    Outside a kernel it is displayed, and the list is empty.
    """
    from IPython.utils.capture import capture_output

    with capture_output(stdout=False, stderr=False) as captured:
        show()
    return [
        {
            "data": {
                kind: base64.b64encode(value).decode() if isinstance(value, bytes) else value
                for kind, value in output.data.items()
            },
            "metadata": output.metadata or {},
        }
        for output in captured.outputs
    ]


def show_outputs(outputs: list[dict[str, Any]]) -> None:
    """Display what `outputs_of` has returned."""
    from IPython.display import display

    for output in outputs:
        display(output["data"], metadata=output["metadata"], raw=True)
