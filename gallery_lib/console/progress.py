"""Progress display: a clock that ticks for each phase, and a bar where something is counted.

    with Progress() as progress:
        progress.show("data")
        progress.show("training", count=3, total=40)  # repeated calls let the clock tick

The form suits the place. A notebook has one output that is updated, and needs neither JavaScript
nor trust. A terminal has its last line drawn over. Elsewhere there are plain lines. A phase has an
estimate once its own pace gives one.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TextIO

from gallery_lib.console import exit_code
from gallery_lib.console.phases import IMPORTS
from gallery_lib.console.table import duration
from gallery_lib.console.visible import unescaped, visible
from gallery_lib.system.processes import now, tell

LINE_SECONDS = 10.0
"""Seconds between two plain lines of one part."""
_TICK_SECONDS = 1.0
_BAR_WIDTH = 20
_NOTEBOOK_WIDTH = 100
_SHORTEST_ESTIMATE = 10.0
"""Seconds. A shorter phase is over before its estimate is read."""
_COUNTED_PART = 0.2
"""Part of a phase that must be done before its own pace gives an estimate."""


def in_notebook() -> bool:
    """Return whether this process is a Jupyter kernel."""
    shell = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
    return bool(shell and "IPKernelApp" in shell.config)


def note(line: str) -> None:
    """Print a line that is no result on standard error.

    In a notebook it goes to standard output, since a notebook shows standard error as errors.
    """
    if in_notebook():
        print(line, flush=True)
    else:
        tell(line)


def redraws(stream: TextIO) -> bool:
    """Return whether text on the stream can be drawn over, as on a terminal that is not dumb."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def fit(text: str, width: int | None) -> str:
    """Return the text, cut where it is longer than `width` columns; None allows any length."""
    return text if width is None or len(text) <= width else text[: max(0, width - 1)] + "…"


@dataclass(frozen=True)
class _Phase:
    """Phase on display; the arguments of `Progress.show` say what the fields mean."""

    label: str
    part: str
    identity: tuple[str, Any]  # what makes it the same phase as before, under another label too
    began: float
    count: int
    counted_at: float
    total: int | None
    unit: str
    first: int
    least: int

    def _estimated_seconds(self, elapsed: float) -> float | None:
        """Return the seconds of the whole phase; None without grounds."""
        if self.total is None or self.total <= self.first:
            return None
        done, of = self.count - self.first, self.total - self.first
        if done < max(self.least, _COUNTED_PART * of):
            return None
        estimate = (self.counted_at - self.began) / done * of
        return estimate if max(_SHORTEST_ESTIMATE, elapsed) <= estimate else None

    def text(self, now: float, seconds_in_all: float, width: int | None) -> str:
        """Return the line, with a bar where `width` columns have room for one."""
        elapsed = now - self.began
        text = duration(elapsed)
        if self.total is not None:
            text = f"{self.count} of {self.total} {self.unit}, {text}"
        if estimate := self._estimated_seconds(elapsed):
            text += f" of about {duration(estimate)}"
        if seconds_in_all >= elapsed + 1.0:
            text += f"; {duration(seconds_in_all)} in all"
        if width and self.total and len(self.label) + len(text) + _BAR_WIDTH + 3 <= width:
            letter = "█" if "utf" in (sys.stderr.encoding or "").lower() else "#"
            bar = letter * round(_BAR_WIDTH * min(1.0, self.count / self.total))
            text = f"{bar.ljust(_BAR_WIDTH)} {text}"
        return fit(f"{self.label}: {text}", width)


class Progress(contextlib.AbstractContextManager["Progress"]):
    """Display of what is going on.

    At the end of the `with` block it says how long each part took. After an error it disappears.
    With `line_seconds=0` each state is a plain line; `clock` returns the time in seconds.
    """

    def __init__(
        self,
        *,
        enabled: bool = True,
        line_seconds: float = LINE_SECONDS,
        clock: Callable[[], float] = now,
    ) -> None:
        self.enabled, self._clock, self._line_seconds = enabled, clock, line_seconds
        self._lock = threading.RLock()
        self._in_notebook = in_notebook()
        self._redraws = not self._in_notebook and sys.stderr is not None and redraws(sys.stderr)
        self._output: Any = None  # of the notebook
        self._drawn = ""  # on the terminal
        self._shown: _Phase | None = None
        self._began = self._part_began = clock()
        self._parts: dict[str, float] = {}
        self._drawn_at = 0.0

    def show(
        self,
        label: str,
        *,
        part: str | None = None,
        count: int = 0,
        total: int | None = None,
        unit: str = "steps",
        first: int = 0,
        least: int = 3,
        began: float | None = None,
    ) -> None:
        """Show a phase, or show again that it still goes on.

        Args:
            label: the phase, as it is shown.
            part: the name under which its seconds are added up at the end; default: the label.
            count: what is done so far.
            total: what there is to do; None where nothing is counted.
            unit: the unit of `count` and `total`.
            first: what was done already when the phase began.
            least: how much must be done before the rest can be estimated.
            began: when the phase began, as returned by `processes.now()`; default: now, where the
                label is new.
        """
        exit_code.raise_if_interrupted()
        if not self.enabled:
            return
        with self._lock:
            now, old, part = self._clock(), self._shown, part or label
            identity = (part, label if began is None else began)
            same = old if old is not None and old.identity == identity else None
            new_part = old is None or old.part != part
            counted_at = same.counted_at if same is not None and same.count == count else now
            if began is None:
                began = same.began if same is not None else now
            if new_part:
                self._end_part(max(self._part_began, min(began, now)))
            self._shown = _Phase(
                label, part, identity, began, count, counted_at, total, unit, first, least
            )
            self._draw_if_due(at_once=new_part if self._plain else same is None)

    @contextlib.contextmanager
    def ticking(
        self, label: str, *, part: str | None = None, patience: float = 0.0
    ) -> Iterator[None]:
        """Context: show `label` while the body runs, which cannot report its own progress.

        Nothing is shown if the body takes less than `patience` seconds. In a notebook the clock
        stands meanwhile: its outputs belong to the thread that runs the cell.
        """
        began = self._clock()
        if not patience:
            self.show(label, part=part)
        if not self.enabled or self._in_notebook:
            yield
            return
        done = threading.Event()

        def tick() -> None:
            if patience:
                if done.wait(patience):
                    return
                self.show(label, part=part, began=began)
            while not done.wait(_TICK_SECONDS):
                with self._lock:
                    self._draw_if_due()

        thread = threading.Thread(target=tick, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    @contextlib.contextmanager
    def importing(self) -> Iterator[None]:
        """Context: show that the body imports libraries, in a command that has begun nothing.

        The clock stands while the load of a library holds the interpreter's lock.
        """
        with self.ticking(IMPORTS), exit_code.importing(self.clear):
            yield

    def say(self, line: str) -> None:
        """Print a line to standard output, above the display."""
        with self._lock:
            if self._drawn:
                self._write("\r\x1b[K")
            print(line, flush=True)
            self._write(self._drawn)

    def finish(self) -> None:
        """Show how long each part took, as the last state."""
        with self._lock:
            now = self._clock()
            self._end_part(now)
            taken = ", ".join(f"{part} {duration(s)}" for part, s in self._parts.items() if s >= 1)
            self._end(f"done in {duration(now - self._began)}" + (f": {taken}" if taken else ""))

    def clear(self) -> None:
        """Remove the display; a notebook keeps the last state, and that it has ended."""
        with self._lock:
            self._end(None)

    def __exit__(self, *raised: Any) -> None:
        """Finish the display, or clear it after an error."""
        (self.finish if raised[0] is None else self.clear)()

    @property
    def _plain(self) -> bool:
        return not (self._in_notebook or self._redraws)

    def _end_part(self, now: float) -> None:
        if self._shown is not None:
            before = self._parts.get(self._shown.part, 0.0)
            self._parts[self._shown.part] = before + now - self._part_began
        self._part_began = now

    def _end(self, done: str | None) -> None:
        """Show `done` as the last state; without it, remove what is shown."""
        shown, self._shown = self._shown, None
        if shown is None:
            return
        if self._redraws:
            self._drawn = ""
            self._write(f"\r\x1b[K{visible(done)}\n" if done else "\r\x1b[K")
        elif done or self._in_notebook:  # whose output cannot be removed
            self._draw(done or f"ended during: {shown.label}")

    def _draw_if_due(self, *, at_once: bool = False) -> None:
        now, phase = self._clock(), self._shown
        seconds = self._line_seconds if self._plain else _TICK_SECONDS
        if phase is not None and (at_once or now - self._drawn_at >= seconds):
            self._draw(phase.text(now, now - self._began, self._width()))
            self._drawn_at = now

    def _width(self) -> int | None:
        if not self._redraws:
            return _NOTEBOOK_WIDTH if self._in_notebook else None
        with contextlib.suppress(OSError, ValueError):
            return (os.get_terminal_size(sys.stderr.fileno()).columns or 80) - 1
        return 79

    def _draw(self, text: str) -> None:
        if self._redraws:
            self._drawn = f"\r{visible(text)}\x1b[K"
            self._write(self._drawn)
        elif not self._in_notebook:
            with contextlib.suppress(OSError, ValueError):  # its reader may have gone
                tell(text)
        elif self._output is not None:
            self._output.update({"text/plain": text}, raw=True)
        else:
            from IPython.display import display

            self._output = display({"text/plain": text}, raw=True, display_id=True)

    def _write(self, text: str) -> None:
        """Write to the terminal, whose reader may have gone; the work goes on."""
        if text:
            with contextlib.suppress(OSError, ValueError):
                unescaped(sys.stderr).write(text)
                sys.stderr.flush()


@contextlib.contextmanager
def busy(label: str, patience: float = 0.0) -> Iterator[None]:
    """Context: show `label` while the body runs, and nothing afterwards.

    Nothing is shown if the body takes less than `patience` seconds.
    """
    progress = Progress()
    try:
        with progress.ticking(label, patience=patience):
            yield
    finally:
        progress.clear()


@contextlib.contextmanager
def progress_display(progress: bool | Progress) -> Iterator[Progress]:
    """Yield the given Progress, which stays open, or a new one, which False keeps silent."""
    if isinstance(progress, Progress):
        yield progress
        return
    with Progress(enabled=progress) as new:
        yield new
