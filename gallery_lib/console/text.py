"""Text for people: tables for a terminal and for Markdown, figures in words, harmless words.

The first row of a table is its header. A task's error, a file's fields, names of tensors and
notebooks may hold escape sequences, which move the cursor, rename the window or hide what stands
there. Every command prints through `VisibleStream` (see `exit_code`), so its other code need not
think of them. The module needs the standard library alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

Rows = Sequence[Sequence[str]]
_SIGNIFICANT_DIGITS = 3
_SMALLEST_PLAIN = 1e-3  # smaller figures are written with an exponent


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


_LONGEST_RULE = 60  # below the last column, whose cells may be sentences


def text_table(rows: Rows) -> str:
    """Return the rows as text with aligned columns and a rule below the header."""
    lines, (*widths, last) = text_columns(rows), _widths(rows)
    rule = "  ".join("-" * width for width in (*widths, min(last, _LONGEST_RULE)))
    return "\n".join([lines[0], rule, *lines[1:]])


def number(value: float) -> str:
    """Return a measured value with three significant digits: `0.125`, `38.1`, `24,600`."""
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


_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but for tab and newline
    "\u202a-\u202e\u2066-\u2069"  # which turn the direction of letters
    "\ud800-\udfff\ufffe\uffff]"  # no UTF-8, and no XML
)


def visible(text: str) -> str:
    """Return the text without colours and moves of the cursor, other control characters escaped.

    Newline and tab stay. A byte that is no UTF-8 is escaped as well.
    """
    return _HIDDEN.sub(
        lambda found: found[0].encode("unicode_escape").decode(), _SEQUENCE.sub("", text)
    )


class VisibleStream:
    """Text stream that writes what is `visible` to `unescaped`; `failure` is its last error."""

    def __init__(self, unescaped: TextIO) -> None:
        self.unescaped = unescaped
        self.failure: OSError | None = None

    def write(self, text: str) -> int:
        """Write what is visible of the text; return how many characters were written."""
        try:
            return self.unescaped.write(visible(text))
        except OSError as error:
            self.failure = error
            raise

    def flush(self) -> None:
        """Write what is buffered."""
        try:
            self.unescaped.flush()
        except OSError as error:
            self.failure = error
            raise

    def writelines(self, lines: Iterable[str]) -> None:
        """Write what is visible of the lines, which bring their line ends."""
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unescaped, name)


def unescaped(stream: Any) -> Any:
    """Return the stream that accepts control characters, for own drawing on a terminal."""
    return getattr(stream, "unescaped", stream)
