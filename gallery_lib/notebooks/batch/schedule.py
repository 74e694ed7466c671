"""Scheduler of a batch: run the planned notebooks one after another, or several at a time.

One thread runs one loop. The loop starts as many notebooks as there is room for, watches the
running ones, and updates the report after every end. SIGINT and SIGTERM only set a mark that the
loop sees, so nothing is ever left half done. Running notebooks are then ended, waiting ones become
`not run`, and the report says so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from gallery_lib.config import BatchConfig, options
from gallery_lib.errors import InputError
from gallery_lib.notebooks.batch import files, shares
from gallery_lib.notebooks.batch.evidence import RUNS_FOLDER, Outcome
from gallery_lib.notebooks.batch.execution import Execution
from gallery_lib.notebooks.batch.plan import Planned, digest
from gallery_lib.notebooks.batch.record import (
    REPORT_FILE,
    Record,
    Report,
    comparisons_in,
    machine,
    read_report,
)
from gallery_lib.system import paths
from gallery_lib.system.files import LockHeld, locked

TICK_SECONDS = 0.1


class Observer:
    """Receiver of a batch's events; this one ignores them all."""

    def started(self, name: str) -> None:
        """Receive the start of a notebook's process."""

    def ended(self, name: str, record: Record) -> None:
        """Receive the outcome of a notebook, or its earlier outcome if that one is kept."""

    def goes_on(self, running: Sequence[Execution], report: Report) -> None:
        """Receive the state of the batch, several times a second."""


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _waiting(planned: Planned) -> Record:
    return Record(
        "not run",
        "its turn has not come",
        0.0,
        None,
        0,
        False,
        planned.parameters,
        planned.digest,
        None,
    )


@contextlib.contextmanager
def _only_runner(folder: Path) -> Iterator[None]:
    """Lock the folder against a second runner.

    The lock goes with the process, however the process ends.

    Raises:
        InputError: if another runner has the lock.
    """
    try:
        with locked(folder / ".lock", seconds=0):
            yield
    except LockHeld:
        raise InputError(
            f"another `gallery run` is at work in {folder}. Wait for it, or name another --out.",
            parameter="out",
        ) from None


@contextlib.contextmanager
def _noted_signals() -> Iterator[list[str]]:
    """Yield a list of names, which grows with every SIGINT and SIGTERM that arrives."""
    arrived: list[str] = []

    def note(number: int, frame: FrameType | None) -> None:
        arrived.append(signal.Signals(number).name)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield arrived
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _earlier(folder: Path, plan: Sequence[Planned], resume: bool) -> dict[str, Record]:
    """Return what an interrupted batch in the folder has of the plan.

    Passed notebooks are kept. Of other notebooks, only the number of attempts counts.
    """
    if not resume or not (folder / REPORT_FILE).exists():
        return {}
    before = read_report(folder).notebooks
    records = {}
    for planned in plan:
        if planned.name not in before:
            continue
        record = before[planned.name]
        if (
            record.status == "passed"
            and record.digest == planned.digest
            and record.folder
            and (folder / record.folder).is_dir()
        ):
            records[planned.name] = dataclasses.replace(record, kept=True)
        else:
            records[planned.name] = dataclasses.replace(_waiting(planned), attempts=record.attempts)
    return records


class _Batch:
    """State of a running batch."""

    def __init__(
        self,
        plan: Sequence[Planned],
        config: BatchConfig,
        folder: Path,
        command: Sequence[str],
        observer: Observer,
    ) -> None:
        self.config, self.folder, self.observer = config, folder, observer
        self._began = time.monotonic()
        kept = _earlier(folder, plan, config.resume)
        self.report = Report(
            command=shlex.join(command),
            began=_now(),
            ended=None,
            interrupted_by=None,
            seconds=0.0,
            options=options.to_mapping(config),
            machine=machine(),
            notebooks={
                planned.name: kept.get(planned.name) or _waiting(planned) for planned in plan
            },
        )
        self.waiting = [planned for planned in plan if not self.report.notebooks[planned.name].kept]
        self.free = shares.shares(min(config.jobs, max(1, len(self.waiting))))
        self.running: list[tuple[Execution, str]] = []
        self._tries: dict[str, int] = {}
        for name, record in self.report.notebooks.items():
            if record.kept:
                observer.ended(name, record)
        self.bring_up_to_date()

    def bring_up_to_date(self, **changes: object) -> None:
        """Apply `changes` to the report and write it."""
        values = {"seconds": time.monotonic() - self._began, **changes}
        self.report = dataclasses.replace(self.report, **values)  # type: ignore[arg-type]
        files.write(self.folder, self.report)

    def start_next(self) -> None:
        """Start the next notebook on a free share."""
        planned = self.waiting.pop(0)
        self._tries[planned.name] = self._tries.get(planned.name, 0) + 1
        execution = Execution(
            planned, paths.free_name(self.folder, planned.name), self.config, self.free.pop()
        )
        self.running.append((execution, _now()))
        self.observer.started(planned.name)

    def collect_ended(self) -> None:
        """Judge notebooks that have ended, and queue those again that have a retry left."""
        for execution, date in [pair for pair in self.running if not pair[0].running()]:
            self.running.remove((execution, date))
            self.free.append(execution.share)
            planned, (outcome, comparisons) = execution.planned, _judged(execution)
            unchanged = digest(planned.path, planned.parameters) == planned.digest
            record = Record(
                status=outcome.status,
                reason=outcome.reason,
                seconds=round(execution.seconds, 1),
                date=date,
                attempts=self.report.notebooks[planned.name].attempts + 1,
                kept=False,
                parameters=planned.parameters,
                digest=planned.digest if unchanged else "changed while it ran",
                folder=execution.folder.name,
                cells_run=outcome.cells_run,
                cells=outcome.cells,
                log_tail=outcome.log_tail,
                comparisons=comparisons,
                code=planned.code if unchanged else None,
                kernel_starts=execution.kernel_starts,
            )
            if (
                record.status not in ("passed", "not run")
                and self._tries[planned.name] <= self.config.retries
            ):
                self.waiting.append(planned)
            self.observer.ended(planned.name, record)
            self.bring_up_to_date(notebooks={**self.report.notebooks, planned.name: record})

    def interrupt(self, name: str) -> None:
        """End everything because the signal `name` has arrived."""
        for execution, _ in self.running:
            execution.stop("not run", f"interrupted by {name} after {execution.seconds:.0f} s")
        self.collect_ended()
        notebooks = dict(self.report.notebooks)
        for planned in self.waiting:
            if notebooks[planned.name].status == "not run":
                notebooks[planned.name] = dataclasses.replace(
                    notebooks[planned.name], reason=f"interrupted by {name} before its turn"
                )
        self.waiting = []
        self.bring_up_to_date(notebooks=notebooks, interrupted_by=name)


def _judged(execution: Execution) -> tuple[Outcome, list[dict[str, Any]]]:
    """Return the outcome and the comparisons of a notebook.

    An exception while a notebook is judged makes this notebook `failed`; the batch goes on.
    """
    try:
        outcome = execution.outcome()
        with contextlib.suppress(InputError):  # the outcome reports a damaged comparison
            return outcome, comparisons_in(execution.folder / RUNS_FOLDER)
        return outcome, []
    except Exception as error:
        reason = f"what it left cannot be judged ({type(error).__name__}: {error})"
        return Outcome("failed", reason, 0, execution.planned.cells, []), []


def run(
    plan: Sequence[Planned],
    config: BatchConfig,
    *,
    command: Sequence[str] = ("gallery", "run"),
    observer: Observer | None = None,
) -> tuple[Path, Report]:
    """Run the plan to its end; return the folder of the batch and its report.

    An interrupt raises no exception: `interrupted_by` of the report names the signal.

    Raises:
        InputError: before anything starts, for an unsuitable folder or number of jobs.
    """
    shares.check(config, [(planned.name, planned.parameters) for planned in plan])
    folder = paths.output_folder(
        config.out, "gallery", resume=config.resume, file=REPORT_FILE, work="batch"
    )
    with _only_runner(folder), _noted_signals() as arrived:
        batch = _Batch(plan, config, folder, command, observer or Observer())
        try:
            while batch.running or batch.waiting:
                while batch.waiting and batch.free and not arrived:
                    batch.start_next()
                batch.collect_ended()
                if arrived:
                    batch.interrupt(arrived[0])
                batch.observer.goes_on([execution for execution, _ in batch.running], batch.report)
                time.sleep(TICK_SECONDS)
        finally:
            for execution, _ in batch.running:
                execution.stop("not run", "the runner failed")
        batch.bring_up_to_date(ended=_now())
    return folder, batch.report
