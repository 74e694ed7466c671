"""Report of a bench as text and as Markdown: its tables and notes in one order."""

from __future__ import annotations

from collections.abc import Callable

from gallery_lib.console.table import Rows, markdown_table, text_table
from gallery_lib.measure.bench.result import OURS, Bench
from gallery_lib.report.bench.figure import figure_text
from gallery_lib.report.bench.leads import summary_rows
from gallery_lib.report.bench.notes import notes
from gallery_lib.report.bench.task_table import best_forms_line, limits_line, task_rows
from gallery_lib.report.doctor import roofline_text


def text(bench: Bench) -> str:
    """Return the bench as text for a terminal."""
    return "\n\n".join(_parts(bench, text_table, ""))


def markdown_tables(bench: Bench, heading: str = "## ") -> str:
    """Return the tables as Markdown, each under a title that begins with `heading`."""
    return "\n\n".join(_parts(bench, markdown_table, heading))


def markdown(bench: Bench, picture: str) -> str:
    """Return the content of a Markdown file that lies beside the file `picture` and shows it."""
    parts = [
        f"# gallery {bench.kind}",
        f"![{figure_text(bench)}]({picture})",
        markdown_tables(bench),
    ]
    return "\n\n".join(parts) + "\n"


def _parts(bench: Bench, table: Callable[[Rows], str], heading: str) -> list[str]:
    parts = []
    for name, outcome in bench.tasks.items():
        sizes = ", ".join(
            f"{key.replace('_', ' ')} {value}" for key, value in outcome.sizes.items()
        )
        parts.append(f"{heading}{name}: {sizes}" if sizes else f"{heading}{name}")
        if outcome.reason is not None:
            parts.append(f"Not measured: {outcome.reason}")
            continue
        parts += [table(task_rows(outcome, bench.kind)), limits_line(outcome)]
        parts += [line for line in [best_forms_line(outcome)] if line]
        if outcome.roofline is not None:
            parts += [roofline_text.summary(outcome.roofline)]
            parts += [table(roofline_text.group_rows(outcome.roofline))]
    if bench.kind == "bench" and any(OURS in outcome.rows for outcome in bench.tasks.values()):
        parts += [f"{heading}ours beside the others", table(summary_rows(bench))]
    return [*parts, *notes(bench)]


def complete(bench: Bench) -> bool:
    """Return whether every task was measured, and ours ran with parity.

    In a waterfall, every technique that applies must have run with parity.
    """
    for outcome in bench.tasks.values():
        judged = [
            row for name, row in outcome.rows.items() if bench.kind == "waterfall" or name == OURS
        ]
        applied = [row for row in judged if not str(row.reason).startswith("does not apply")]
        if outcome.reason is not None or not all(row.comparable for row in applied):
            return False
    return True
