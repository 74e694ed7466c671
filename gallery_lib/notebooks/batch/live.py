"""Live progress of a batch: an updated table on a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from gallery_lib.console.outlets import redraws
from gallery_lib.console.table import duration
from gallery_lib.notebooks.batch import summary
from gallery_lib.notebooks.batch.execution import Execution
from gallery_lib.notebooks.batch.record import Record, Report
from gallery_lib.notebooks.batch.schedule import Observer

LINE_SECONDS = 15.0
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


class Lines(Observer):
    """Observer that prints a line at every start and end, and progress lines in between."""

    def __init__(self, count: int) -> None:
        """Prepare the output for a batch of `count` notebooks."""
        self._count, self._said = count, time.monotonic()
        self._ended: set[str] = set()

    def started(self, name: str) -> None:
        """Print that a notebook has started."""
        print(f"{name}: started", flush=True)

    def ended(self, name: str, record: Record) -> None:
        """Print the status of a notebook, with its reason or its speed-ups."""
        self._ended.add(name)
        details = "; ".join(filter(None, [record.reason, summary.speedups(record)]))
        after = "" if record.kept else f" after {duration(record.seconds)}"
        print(
            (
                f"[{len(self._ended)}/{self._count}] {name}: "
                f"{summary.status(record)}{after}{': ' if details else ''}{details}"
            ),
            flush=True,
        )

    def goes_on(self, running: Sequence[Execution], report: Report) -> None:
        """Print the progress of each running notebook, every LINE_SECONDS."""
        if time.monotonic() - self._said < LINE_SECONDS:
            return
        self._said = time.monotonic()
        for execution in running:
            print(
                f"{execution.planned.name}: {execution.progress()}, {duration(execution.seconds)}",
                flush=True,
            )


class Table(Observer):
    """Observer that draws a table on a terminal.

    The table disappears when the batch has ended, since the summary follows. NO_COLOR is respected.
    """

    def __init__(self, live: Any) -> None:
        """Prepare the table for drawing on `live`, a `rich.live.Live`."""
        self._live, self._drawn, self._began = live, 0.0, time.monotonic()

    def goes_on(self, running: Sequence[Execution], report: Report) -> None:
        """Redraw the table, every REDRAW_SECONDS."""
        if time.monotonic() - self._drawn < REDRAW_SECONDS:
            return
        from rich.markup import escape
        from rich.table import Table as Drawn

        self._drawn = time.monotonic()
        by_name = {execution.planned.name: execution for execution in running}
        drawn = Drawn(
            "notebook",
            "status",
            "duration",
            "what",
            title=heading(list(by_name), report, time.monotonic() - self._began),
        )
        for name, record in report.notebooks.items():
            if name in by_name:
                drawn.add_row(
                    name,
                    "[bold]running[/]",
                    duration(by_name[name].seconds),
                    by_name[name].progress(),
                )
            elif record.date is None:
                drawn.add_row(name, "[dim]waiting[/]", "", "")
            else:
                colour = "green" if record.status == "passed" else "red"
                what = record.reason or summary.speedups(record)
                drawn.add_row(
                    name,
                    f"[{colour}]{summary.status(record)}[/]",
                    duration(record.seconds),
                    escape(what),
                )
        self._live.update(drawn, refresh=True)


@contextlib.contextmanager
def shown(count: int) -> Iterator[Observer]:
    """Yield the observer that suits standard output, for a batch of `count` notebooks."""
    if not redraws(sys.stdout):
        yield Lines(count)
        return
    from rich.live import Live

    with Live(auto_refresh=False, transient=True) as live:
        yield Table(live)
