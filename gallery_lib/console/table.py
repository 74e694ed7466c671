"""Tables of text for a terminal and for Markdown, and figures in words.

The first row is the header. The module needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Rows = Sequence[Sequence[str]]
_SIGNIFICANT_DIGITS = 3
_SMALLEST_PLAIN = 1e-3
"""Figures below this value are written with an exponent."""


def markdown_table(rows: Rows) -> str:
    """Return the rows as a Markdown table."""
    header, *body = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *body])


def _widths(rows: Rows) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def text_columns(rows: Rows) -> list[str]:
    """Return a line of text for each row, with aligned columns."""
    widths = _widths(rows)
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def text_table(rows: Rows) -> str:
    """Return the rows as text with aligned columns and a rule below the header."""
    lines = text_columns(rows)
    return "\n".join([lines[0], "  ".join("-" * width for width in _widths(rows)), *lines[1:]])


def number(value: float) -> str:
    """Return a measured value with three significant digits and thousands separators.

    Examples are `0.125`, `38.1` and `24,600`.
    """
    if not math.isfinite(value):
        return "not finite"
    if value == 0:
        return "0"
    if abs(value) < _SMALLEST_PLAIN:
        return f"{value:.2g}"
    # Rounding comes before counting digits: 9.999 has one more than it seems.
    rounded = float(f"{value:.{_SIGNIFICANT_DIGITS}g}")
    decimals = _SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(0, decimals)}f}"


def seconds(value: float) -> str:
    """Return a duration with its unit: `12.3 ms`, `1.23 s` or `410 s`."""
    return f"{number(value * 1000)} ms" if value < 1 else f"{number(value)} s"


def duration(value: float) -> str:
    """Return whole seconds as text: `34 s` or `3 min 5 s`."""
    whole = int(value)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"


def rate(samples_per_second: float) -> str:
    """Return a throughput with its unit: `38.1 samples/s`."""
    return f"{number(samples_per_second)} samples/s"
