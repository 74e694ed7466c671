"""Phases of a run, and the display of the one that goes on, with its clock and what is counted.

Rank 0 notes each phase in `phases.json` when it begins, and whoever watches the run reads the file.
A change of phase costs one small file, written atomically; a steady step notes nothing. Without the
file the processes are still importing their libraries.

    with Progress() as progress:
        progress.show("data")
        progress.show("training", count=3, total=40)

The form suits the place. A notebook has one output that is updated, and needs neither JavaScript
nor trust. A terminal has its last line drawn over each second. Elsewhere there are plain lines.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from gallery_lib.console import exit_code
from gallery_lib.console.text import duration, unescaped, visible
from gallery_lib.errors import InputError
from gallery_lib.system.files import atomic_write, read_json, written_if_possible
from gallery_lib.system.processes import in_notebook, now, tell

PHASES_FILE = "phases.json"

IMPORTS = "imports"
DATA = "data"
MODEL = "model"
WARM_UP = "warm-up"
PROBE = "gradient probe"
TRAINING = "training"
TURNS = "turns"
ROOFLINE = "roofline"
EVALUATION = "evaluation"
ENDING = "ending"

# Phases that are kept. A model with graph breaks everywhere compiles hundreds of times.
_LONGEST_LIST = 500


@dataclass(frozen=True)
class Phase:
    """One phase of a run; when it began, `count` of `total` steps were done."""

    name: str
    began: float  # as returned by `processes.now()`
    count: int = 0
    total: int | None = None


class PhaseLog:
    """Log of the phases of a run, in its directory; it writes nothing unless `enabled`."""

    def __init__(self, run_dir: Path, *, enabled: bool = True) -> None:
        self._path, self._enabled = run_dir / PHASES_FILE, enabled
        self._phases: list[Phase] = []
        self._graphs, self._steady = 0, Phase(IMPORTS, 0.0)

    def begin(self, name: str, *, count: int = 0, total: int | None = None) -> None:
        """Note that a phase begins, which ends the previous one."""
        self._steady = Phase(name, now(), count, total)
        self._append(self._steady)

    def _append(self, phase: Phase) -> None:
        """Add `phase` to the log and write its file anew; a full disk does not end the run."""
        if not self._enabled:
            return
        self._phases = [*self._phases, phase][-_LONGEST_LIST:]
        with written_if_possible(self._path.parent):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(self._path) as file:
                json.dump([vars(phase) for phase in self._phases], file)

    def compilation_began(self) -> None:
        """Note that the compilation of a graph begins."""
        self._graphs += 1
        self._append(Phase(f"compiling, graph {self._graphs}", now()))

    def build_began(self) -> None:
        """Note that the build of own kernels begins."""
        self._append(Phase("building own kernels", now()))

    def compilation_ended(self) -> None:
        """Note that the phase before the compilation, or build, goes on."""
        self._append(dataclasses.replace(self._steady, began=now()))


def read_phases(run_dir: Path | str) -> list[Phase]:
    """Return the phases of a run so far, in order; none before its imports are done."""
    try:
        return read_json(Path(run_dir) / PHASES_FILE, list[Phase], again="")
    except (OSError, InputError):  # not written yet, or not a file of ours
        return []


LINE_SECONDS = 10.0  # between two plain lines of one phase
_TICK_SECONDS = 1.0


def redraws(stream: TextIO) -> bool:
    """Return whether text on the stream can be drawn over, as on a terminal that is not dumb."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def fit(text: str, width: int) -> str:
    """Return the text, cut where it is longer than `width` columns."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


class Progress(contextlib.AbstractContextManager["Progress"]):
    """Display of what is going on, which ends with the `with` block.

    With `line_seconds=0` each state is a plain line; `clock` returns the time in seconds.
    """

    def __init__(
        self,
        *,
        enabled: bool = True,
        line_seconds: float = LINE_SECONDS,
        clock: Callable[[], float] = now,
    ) -> None:
        self.enabled, self._clock = enabled, clock
        self._in_notebook = in_notebook()
        self._redraws = not self._in_notebook and redraws(sys.stderr)
        redrawn = self._in_notebook or self._redraws
        self._every = _TICK_SECONDS if redrawn else line_seconds
        # Plain lines leave out what lasts less than this: phases of variants come and go.
        self._shortest = 0.0 if redrawn else min(_TICK_SECONDS, line_seconds)
        self._lock, self._ended = threading.RLock(), threading.Event()
        self._thread: threading.Thread | None = None  # lets the clock of a terminal tick
        self._output: Any = None  # of the notebook
        self._label = self._counted = self._drawn = ""
        self._start = self._began = clock()
        self._drawn_at = -math.inf

    def show(
        self,
        label: str,
        *,
        count: int = 0,
        total: int | None = None,
        unit: str = "steps",
        began: float | None = None,
    ) -> None:
        """Show a phase, or show again that it still goes on.

        Without a `total` nothing is counted. The phase `began` at that time of `processes.now()`;
        default: now, where the label is new.
        """
        if not self.enabled:
            return
        with self._lock:
            at, is_new = self._clock(), label != self._label
            if is_new or began is not None:
                self._began = at if began is None else began
            self._label = label
            self._counted = f"{count} of {total} {unit}, " if total is not None else ""
            pause = self._every if label == self._drawn else self._shortest
            if at - self._drawn_at >= pause:
                self._draw()
            if self._redraws and self._thread is None:
                self._thread = threading.Thread(target=self._tick, daemon=True)
                self._thread.start()

    @contextlib.contextmanager
    def importing(self) -> Iterator[None]:
        """Context: show that the body imports libraries, in a command that has begun nothing."""
        self.show(IMPORTS)
        with exit_code.importing():
            yield

    def say(self, line: str) -> None:
        """Print a line to standard output, above the display."""
        with self._lock:
            self._write("\r\x1b[K")
            print(line, flush=True)
            if self._label and self._redraws:
                self._draw()

    def clear(self) -> None:
        """Remove the display; a notebook keeps the last state."""
        with self._lock:
            self._write("\r\x1b[K")
            self._ended.set()
            self._label = ""

    def __exit__(self, *raised: Any) -> None:
        """Say how long it all took; after an error, only remove the display."""
        with self._lock:
            if self._label and raised[0] is None:
                self._print(f"done in {duration(self._clock() - self._start)}")
                self._write("\n")
                self._label = ""
            self.clear()

    def _tick(self) -> None:
        while not self._ended.wait(_TICK_SECONDS):
            with self._lock:
                if self._label:
                    self._draw()

    def _draw(self) -> None:
        self._drawn, self._drawn_at = self._label, self._clock()
        elapsed = duration(self._drawn_at - self._began)
        self._print(f"{self._label}: {self._counted}{elapsed}")

    def _print(self, text: str) -> None:
        if self._redraws:
            width = shutil.get_terminal_size().columns
            self._write(f"\r{visible(fit(text, width - 1))}\x1b[K")
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
        if self._redraws and self._label:
            with contextlib.suppress(OSError, ValueError):
                unescaped(sys.stderr).write(text)
                sys.stderr.flush()


@contextlib.contextmanager
def progress_display(progress: bool | Progress) -> Iterator[Progress]:
    """Yield the given Progress, which stays open, or a new one, which False keeps silent."""
    if isinstance(progress, Progress):
        yield progress
        return
    with Progress(enabled=progress) as new:
        yield new
