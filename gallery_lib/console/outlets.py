"""Outlets of progress: a notebook's output, a terminal's last line, or plain lines.

Each outlet decides when it is due to draw.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, Protocol, TextIO

TICK_SECONDS = 1.0


def in_notebook() -> bool:
    """Return whether this process is a Jupyter kernel."""
    shell = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
    return bool(shell and "IPKernelApp" in shell.config)


def note(line: str) -> None:
    """Print a line that is no result on standard error.

    In a notebook it goes to standard output, since a notebook shows standard error as errors.
    """
    print(line, file=sys.stdout if in_notebook() else sys.stderr, flush=True)


def redraws(stream: TextIO) -> bool:
    """Return whether text that was written to the stream can be drawn over.

    A terminal whose cursor moves allows that; a dumb terminal, a pipe and a file do not.
    """
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def fit(text: str, width: int | None) -> str:
    """Return the text, cut where it is longer than `width` columns; None allows any length."""
    return text if width is None or len(text) <= width else text[: max(0, width - 1)] + "…"


class Outlet(Protocol):
    """Place that shows one text at a time, again and again."""

    own_thread: bool  # whether another thread than the main one may draw

    def width(self) -> int | None:
        """Return the number of columns; None where there is no bar."""

    def due(self, since: float, *, new_phase: bool, new_part: bool) -> bool:
        """Return whether to draw, `since` seconds after the last drawing."""

    def draw(self, text: str) -> None:
        """Show the text instead of the previous one."""

    def say(self, line: str) -> None:
        """Print a line to standard output that stays."""

    def end(self, done: str | None, label: str) -> None:
        """Show `done` as the last state; without it, remove the text, which was `label`."""


class Notebook:
    """One text output of a notebook that is updated in place.

    A saved notebook holds its last state, and needs neither JavaScript nor trust.
    """

    own_thread = False  # an output belongs to the thread that runs the cell

    def __init__(self) -> None:
        """Start without an output: the first drawing displays one."""
        self._handle: Any = None

    def width(self) -> int | None:
        """Return 100 columns."""
        return 100

    def due(self, since: float, *, new_phase: bool, new_part: bool) -> bool:
        """Return true for a new phase, and once per tick."""
        return new_phase or since >= TICK_SECONDS

    def draw(self, text: str) -> None:
        """Update the output, or display it for the first time."""
        if self._handle is not None:
            self._handle.update({"text/plain": text}, raw=True)
            return
        from IPython.display import display

        self._handle = display({"text/plain": text}, raw=True, display_id=True)

    def say(self, line: str) -> None:
        """Print a line to the output of the cell."""
        print(line, flush=True)

    def end(self, done: str | None, label: str) -> None:
        """Show the last state, or where the end came: a notebook output cannot be removed."""
        self.draw(done or f"ended during: {label}")


class Terminal:
    """Last line of a terminal, drawn over on standard error."""

    own_thread = True

    def __init__(self) -> None:
        """Start with nothing drawn."""
        self._drawn = ""

    def width(self) -> int | None:
        """Return the columns of the terminal less one; 79 where they are unknown."""
        with contextlib.suppress(OSError, ValueError):
            return (os.get_terminal_size(sys.stderr.fileno()).columns or 80) - 1
        return 79

    def due(self, since: float, *, new_phase: bool, new_part: bool) -> bool:
        """Return true for a new phase, and once per tick."""
        return new_phase or since >= TICK_SECONDS

    def draw(self, text: str) -> None:
        """Draw the text over the last line."""
        self._drawn = f"\r{text}\x1b[K"
        self._write(self._drawn)

    def say(self, line: str) -> None:
        """Print a line; the drawn text moves below it."""
        if self._drawn:
            self._write("\r\x1b[K")
        print(line, flush=True)
        self._write(self._drawn)

    def end(self, done: str | None, label: str) -> None:
        """Replace the drawn text by `done`, or erase it."""
        self._drawn = ""
        self._write(f"\r\x1b[K{done}\n" if done else "\r\x1b[K")

    def _write(self, text: str) -> None:
        # The reader of the stream may have gone; the work goes on.
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()


class Lines:
    """Plain lines on standard error: one when a part begins, and some while it goes on."""

    own_thread = True

    def __init__(self, seconds: float) -> None:
        """Set the seconds between two lines of one part."""
        self._seconds = seconds

    def width(self) -> int | None:
        """Return None: plain lines have no bar."""
        return None

    def due(self, since: float, *, new_phase: bool, new_part: bool) -> bool:
        """Return true for a new part, and after the seconds between two lines."""
        return new_part or since >= self._seconds

    def draw(self, text: str) -> None:
        """Print the text as a line of its own."""
        # The reader of the stream may have gone; the work goes on.
        with contextlib.suppress(OSError, ValueError):
            print(text, file=sys.stderr, flush=True)

    def say(self, line: str) -> None:
        """Print a line to standard output."""
        print(line, flush=True)

    def end(self, done: str | None, label: str) -> None:
        """Print `done` as the last line."""
        if done:
            self.draw(done)


def outlet(line_seconds: float) -> Outlet:
    """Return the outlet that suits this process."""
    if in_notebook():
        return Notebook()
    return Terminal() if redraws(sys.stderr) else Lines(line_seconds)
