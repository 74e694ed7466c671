"""Progress display: a clock that ticks for each phase, and a bar where something is counted.

The form suits the place (outlets.py): one output of a notebook, the last line of a terminal, plain
lines elsewhere.

    with Progress() as progress:
        progress.show("data")
        progress.show("training", count=3, total=40)  # repeated calls let the clock tick

shown_phase.py makes the line of a phase, with an estimate where there are grounds for one.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from gallery_lib.console.outlets import TICK_SECONDS, outlet
from gallery_lib.console.phases import IMPORTS
from gallery_lib.console.shown_phase import ShownPhase
from gallery_lib.console.signals import raise_if_interrupted
from gallery_lib.console.table import duration
from gallery_lib.system.processes import now

LINE_SECONDS = 10.0
"""Seconds between two plain lines of one part."""


class Progress(contextlib.AbstractContextManager["Progress"]):
    """Display of what is going on.

    At the end of the `with` block it says how long each part took. After an error it disappears.
    """

    def __init__(
        self,
        *,
        enabled: bool = True,
        line_seconds: float = LINE_SECONDS,
        clock: Callable[[], float] = now,
    ) -> None:
        """Start the clock; nothing is shown yet.

        Args:
            enabled: whether anything is shown at all.
            line_seconds: seconds between two plain lines of one part.
            clock: function that returns the time in seconds.
        """
        self.enabled, self._clock = enabled, clock
        self._lock = threading.RLock()
        self._outlet = outlet(line_seconds)
        self._shown: ShownPhase | None = None
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
        expected: float | None = None,
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
            expected: seconds that the phase took in earlier runs.
        """
        raise_if_interrupted()
        if not self.enabled:
            return
        with self._lock:
            now, old, part = self._clock(), self._shown, part or label
            identity = (part, label if began is None else began)
            same = old is not None and old.identity == identity
            new_part = old is None or old.part != part
            counted_at = old.counted_at if old is not None and same and old.count == count else now
            if began is None:
                began = old.began if old is not None and same else now
            if new_part:
                self._end_part(max(self._part_began, min(began, now)))
            self._shown = ShownPhase(
                label, part, identity, began, count, counted_at, total, unit, first, least, expected
            )
            self._draw(new_phase=not same, new_part=new_part)

    def tick(self) -> None:
        """Let the clock on display go on."""
        with self._lock:
            if self.enabled and self._shown is not None:
                self._draw()

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
        if not self.enabled or not self._outlet.own_thread:
            yield
            return
        done = threading.Event()

        def tick() -> None:
            if patience:
                if done.wait(patience):
                    return
                self.show(label, part=part, began=began)
            while not done.wait(TICK_SECONDS):
                self.tick()

        thread = threading.Thread(target=tick, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    @contextlib.contextmanager
    def importing(self) -> Iterator[None]:
        """Context: show that the body imports libraries, in a command that has no threads yet.

        A forked process draws. Loading a library can hold the interpreter's lock for seconds, in
        which no thread could draw.
        """
        self.show(IMPORTS)
        if not self.enabled or not self._outlet.own_thread:
            yield
            return
        ended, ends = os.pipe()
        drawer = os.fork()
        if drawer == 0:
            try:
                os.close(ends)
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                # The pipe is closed also when the command is killed.
                while not select.select([ended], [], [], TICK_SECONDS)[0]:
                    self.tick()
            finally:
                os._exit(0)
        os.close(ended)
        try:
            yield
        finally:
            os.close(ends)
            os.kill(drawer, signal.SIGKILL)
            os.waitpid(drawer, 0)
        raise_if_interrupted()

    def say(self, line: str) -> None:
        """Print a line to standard output, above the display."""
        with self._lock:
            self._outlet.say(line)

    def finish(self) -> None:
        """Show how long each part took, as the last state."""
        with self._lock:
            now = self._clock()
            self._end_part(now)
            taken = ", ".join(
                f"{part} {duration(seconds)}"
                for part, seconds in self._parts.items()
                if seconds >= 1.0
            )
            self._end(f"done in {duration(now - self._began)}" + (f": {taken}" if taken else ""))

    def clear(self) -> None:
        """Remove the display; a notebook keeps the last state, and that it has ended."""
        with self._lock:
            self._end(None)

    def __exit__(self, *raised: Any) -> None:
        """Finish the display, or clear it after an error."""
        (self.finish if raised[0] is None else self.clear)()

    def _end_part(self, now: float) -> None:
        if self._shown is not None:
            self._parts[self._shown.part] = (
                self._parts.get(self._shown.part, 0.0) + now - self._part_began
            )
        self._part_began = now

    def _end(self, done: str | None) -> None:
        if self._shown is not None:
            self._outlet.end(done, self._shown.label)
        self._shown = None

    def _draw(self, *, new_phase: bool = False, new_part: bool = False) -> None:
        now = self._clock()
        if self._shown is not None and self._outlet.due(
            now - self._drawn_at, new_phase=new_phase, new_part=new_part
        ):
            self._outlet.draw(self._shown.text(now, now - self._began, self._outlet.width()))
            self._drawn_at = now


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
    """Yield the given Progress, which stays open, or a new one.

    Args:
        progress: an open Progress; True for a new one; False for a new one that shows nothing.
    """
    if isinstance(progress, Progress):
        yield progress
        return
    with Progress(enabled=progress) as new:
        yield new
