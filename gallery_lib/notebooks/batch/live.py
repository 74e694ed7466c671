"""Live progress of a batch: an updated table on a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gallery_lib.console.progress import redraws
from gallery_lib.console.table import duration
from gallery_lib.console.visible import unescaped, visible
from gallery_lib.errors import InputError
from gallery_lib.measure.comparison.result import read_comparison
from gallery_lib.notebooks.batch import summary
from gallery_lib.notebooks.batch.evidence import RUNS_FOLDER
from gallery_lib.notebooks.batch.record import Record, Report
from gallery_lib.notebooks.batch.schedule import Execution, Observer
from gallery_lib.report import verdict

LINE_SECONDS = 20.0
LINE_PART = 0.5  # of the time so far passes between two plain lines
REDRAW_SECONDS = 1.0  # drawing takes CPU time from the measured notebooks


def heading(running: Sequence[str], report: Report, seconds: float) -> str:
    """Return what the notebooks of a batch do at this moment.

    For example: `1 running, 3 waiting, 2 passed, 1 failed; 4 min 3 s`.
    """
    counts: dict[str, int] = {"running": len(running), "waiting": 0}
    for name, record in report.notebooks.items():
        if name not in running:
            state = "waiting" if record.date is None else record.status
            counts[state] = counts.get(state, 0) + 1
    return (
        f"{', '.join(f'{count} {state}' for state, count in counts.items() if count)}; "
        f"{duration(seconds)}"
    )


class Progress(Observer):
    """Observer that prints plain lines, or draws a table on `live`, a `rich.live.Live`.

    The table disappears when the batch has ended, since the summary follows. A single notebook's
    verdict is shown as soon as it is measured.
    """

    def __init__(self, count: int, live: Any = None) -> None:
        """Prepare the output for a batch of `count` notebooks."""
        self._count, self._live = count, live
        self._began = self._said = time.monotonic()
        self._looked = 0.0
        self._ended: set[str] = set()
        self._compared: set[Path] = set()

    def started(self, name: str) -> None:
        """Print that a notebook of several has started."""
        if self._live is None and self._count > 1:
            print(f"{name}: started", flush=True)

    def ended(self, name: str, record: Record) -> None:
        """Print the status of a notebook of several, with its reason or its speed-ups."""
        self._ended.add(name)
        if self._live is not None or self._count == 1:
            return
        details = "; ".join(filter(None, [record.reason, summary.speedups(record)]))
        after = "" if record.kept else f" after {duration(record.seconds)}"
        print(
            f"[{len(self._ended)}/{self._count}] {name}: "
            f"{summary.status(record)}{after}{': ' if details else ''}{details}",
            flush=True,
        )

    def in_progress(self, running: Sequence[Execution], report: Report) -> None:
        """Show new verdicts, and the progress of the running notebook."""
        now = time.monotonic()
        if now - self._looked < REDRAW_SECONDS:
            return
        self._looked = now
        if self._count == 1:
            for line in self._new_verdicts(running):
                if self._live is None:
                    print(f"{line} The notebook goes on.", flush=True)
                else:
                    self._live.console.print(visible(line), markup=False, highlight=False)
        if self._live is not None:
            self._live.update(self._table(running, report), refresh=True)
        elif now - self._said >= max(LINE_SECONDS, LINE_PART * (now - self._began)):
            self._said = now
            for one in running:
                print(f"{one.planned.name}: {one.progress()}, {duration(one.seconds)}", flush=True)

    def _new_verdicts(self, running: Sequence[Execution]) -> Iterator[str]:
        """Yield a line for each comparison that has ended since the last look."""
        for execution in running:
            found = set((execution.folder / RUNS_FOLDER).rglob("comparison.json"))
            for path in sorted(found - self._compared):
                self._compared.add(path)
                with contextlib.suppress(InputError):  # it makes the notebook fail
                    yield verdict.lines(read_comparison(path.parent))[0]

    def _table(self, running: Sequence[Execution], report: Report) -> Any:
        """Return the table of all notebooks as they are now."""
        from rich.table import Table
        from rich.text import Text

        by_name = {execution.planned.name: execution for execution in running}
        title = heading(list(by_name), report, time.monotonic() - self._began)
        table = Table("notebook", "status", "duration", "what", title=title)
        for name, record in report.notebooks.items():
            if one := by_name.get(name):
                status, seconds, what = Text("running", "bold"), one.seconds, one.progress()
            elif record.date is None:
                status, seconds, what = Text("waiting", "dim"), None, ""
            else:
                colour = "green" if record.status == "passed" else "red"
                status, seconds = Text(summary.status(record), colour), record.seconds
                what = record.reason or summary.speedups(record)
            shown_duration = "" if seconds is None else duration(seconds)
            table.add_row(Text(visible(name)), status, shown_duration, Text(visible(what)))
        return table


@contextlib.contextmanager
def shown(count: int) -> Iterator[Observer]:
    """Yield the observer that suits standard output, for a batch of `count` notebooks."""
    if not redraws(sys.stdout):
        yield Progress(count)
        return
    from rich.console import Console
    from rich.live import Live

    with Live(
        console=Console(file=unescaped(sys.stdout)),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,  # it would write to the unescaped stream
        redirect_stderr=False,
    ) as live:
        yield Progress(count, live)
