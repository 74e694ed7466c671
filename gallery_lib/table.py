"""Rows of text as a table, for a terminal and for Markdown; the first row is the header. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence

Rows = Sequence[Sequence[str]]


def markdown_table(rows: Rows) -> str:
    """A Markdown table."""
    header, *body = rows
    lines = ["| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *body]]
    return "\n".join(lines)


def _widths(rows: Rows) -> list[int]:
    return [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]


def text_columns(rows: Rows) -> list[str]:
    """A line of text for each row, the columns below each other."""
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, _widths(rows), strict=True)).rstrip() for row in rows]


def text_table(rows: Rows) -> str:
    """The same in columns."""
    lines = text_columns(rows)
    return "\n".join([lines[0], "  ".join("-" * width for width in _widths(rows)), *lines[1:]])


def seconds(value: float) -> str:
    """`12.3 ms` or `1.23 s`."""
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.2f} s"
