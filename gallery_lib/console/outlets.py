"""Where progress is shown: a notebook's output, a terminal's last line, or plain lines; each decides when it is due."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, Protocol, TextIO

TICK_SECONDS = 1.0


def in_notebook() -> bool:
    """Whether this process is a Jupyter kernel."""
    shell = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
    return bool(shell and "IPKernelApp" in shell.config)


def redraws(stream: TextIO) -> bool:
    """Whether what was written to the stream can be drawn over: a terminal with a cursor that moves."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def fitted(text: str, width: int | None) -> str:
    """Return the text, cut where it is longer than `width` columns; None is any number of them."""
    return text if width is None or len(text) <= width else text[: max(0, width - 1)] + "…"


class Outlet(Protocol):
    """Shows one text, again and again."""

    own_thread: bool  # whether another thread than the main one may draw

    def width(self) -> int | None:
        """Return how many columns there are; None where there is no bar."""

    def due(self, since: float, *, new_phase: bool, new_part: bool) -> bool:
        """Return whether to draw, `since` seconds after the last time."""

    def draw(self, text: str) -> None:
        """Show the text instead of the one before."""

    def say(self, line: str) -> None:
        """Print a line to standard output that stays."""

    def end(self, done: str | None, label: str) -> None:
        """Show `done` as the last state; without it, take away what is shown, which was `label`."""


class Notebook:
    """One text output that is updated in place: a saved notebook holds its last state, and needs neither JavaScript nor trust."""

    own_thread = False  # an output belongs to the thread that runs the cell

    def __init__(self) -> None:
        self._handle: Any = None

    def width(self) -> int | None:
        """See Outlet."""
        return 100

    def due(self, since: float, *, new_phase: bool, new_part: bool) -> bool:
        """See Outlet."""
        return new_phase or since >= TICK_SECONDS

    def draw(self, text: str) -> None:
        """See Outlet."""
        if self._handle is not None:
            self._handle.update({"text/plain": text}, raw=True)
            return
        from IPython.display import display

        self._handle = display({"text/plain": text}, raw=True, display_id=True)

    def say(self, line: str) -> None:
        """See Outlet."""
        print(line, flush=True)

    def end(self, done: str | None, label: str) -> None:
        """See Outlet; an output cannot be taken away, so it says where the end came."""
        self.draw(done or f"ended during: {label}")


class Terminal:
    """The last line of a terminal, drawn over on standard error."""

    own_thread = True

    def __init__(self) -> None:
        self._drawn = ""

    def width(self) -> int | None:
        """See Outlet."""
        with contextlib.suppress(OSError, ValueError):
            return (os.get_terminal_size(sys.stderr.fileno()).columns or 80) - 1
        return 79

    def due(self, since: float, *, new_phase: bool, new_part: bool) -> bool:
        """See Outlet."""
        return new_phase or since >= TICK_SECONDS

    def draw(self, text: str) -> None:
        """See Outlet."""
        self._drawn = f"\r{text}\x1b[K"
        self._write(self._drawn)

    def say(self, line: str) -> None:
        """See Outlet; what is drawn moves below the line."""
        if self._drawn:
            self._write("\r\x1b[K")
        print(line, flush=True)
        self._write(self._drawn)

    def end(self, done: str | None, label: str) -> None:
        """See Outlet."""
        self._drawn = ""
        self._write(f"\r\x1b[K{done}\n" if done else "\r\x1b[K")

    def _write(self, text: str) -> None:
        with contextlib.suppress(
            OSError, ValueError
        ):  # whoever watched may have gone; the work goes on
            sys.stderr.write(text)
            sys.stderr.flush()


class Lines:
    """Plain lines on standard error: one when a part begins, and now and then while it goes on."""

    own_thread = True

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def width(self) -> int | None:
        """See Outlet."""
        return None

    def due(self, since: float, *, new_phase: bool, new_part: bool) -> bool:
        """See Outlet."""
        return new_part or since >= self._seconds

    def draw(self, text: str) -> None:
        """See Outlet."""
        with contextlib.suppress(
            OSError, ValueError
        ):  # whoever watched may have gone; the work goes on
            print(text, file=sys.stderr, flush=True)

    def say(self, line: str) -> None:
        """See Outlet."""
        print(line, flush=True)

    def end(self, done: str | None, label: str) -> None:
        """See Outlet."""
        if done:
            self.draw(done)


def outlet(line_seconds: float) -> Outlet:
    """Return the one that suits this process."""
    if in_notebook():
        return Notebook()
    return Terminal() if redraws(sys.stderr) else Lines(line_seconds)
