"""Run the planned notebooks of a batch one after another, each by papermill under the supervisor.

The supervisor ends every descendant (kernel, torchrun, workers, loaders) when papermill ends, on
request, and when this process is gone for whatever reason. The report is written after every
notebook. SIGINT and SIGTERM only set a mark that the loop sees, so nothing is ever left half done:
the running notebook is ended, waiting ones become `not run`, and the report says so.
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
from typing import Any, Literal

import yaml

from gallery_lib.config import BatchConfig, options
from gallery_lib.console.phases import PHASES_FILE, TRAINING, TURNS, read_phases
from gallery_lib.console.progress import fit
from gallery_lib.errors import InputError
from gallery_lib.notebooks.batch import evidence, reports
from gallery_lib.notebooks.batch.evidence import LOG_FILE, RUNS_FOLDER, Ended, Outcome
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
from gallery_lib.system.processes import PYTHON, end_supervised, shell_exit_code, start_supervised
from gallery_lib.train.run_log import last_step

TICK_SECONDS = 0.1
PARAMETERS_FILE = "parameters.yaml"
_SOURCE_COLUMNS = 50


def _run_at_work(folder: Path) -> Path | None:
    """Return the directory of the run below `folder` that is at work; None without one.

    Among the runs that have not ended, it is the one with the newest phase.
    """
    begun = {
        file.parent: phases[-1].began
        for file in folder.rglob(PHASES_FILE)
        if (phases := read_phases(file.parent))
    }
    alive = [run_dir for run_dir in begun if not (run_dir / "results.json").exists()]
    return max(alive, key=begun.__getitem__, default=None)


def progress(folder: Path, cells: Sequence[str]) -> str:
    """Return the progress of the notebook in `folder`, whose cells have these sources.

    For example: `cell 5 of 24, notebook.train(settings), training, step 40 of 66`.
    """
    number = evidence.started_cell(evidence.read_log(folder))
    if number is None:
        return "starting"
    # Of several lines, the last: it uses what those before it have bound.
    last = cells[number - 1].strip().rpartition("\n")[2].strip()
    text = f"cell {number} of {len(cells)}" + (f", {fit(last, _SOURCE_COLUMNS)}" if last else "")
    run_dir = _run_at_work(folder / RUNS_FOLDER)
    if run_dir is None:
        return text
    phase, step = read_phases(run_dir)[-1], last_step(run_dir)
    counted = phase.name in (TRAINING, TURNS) and step
    steps = f", step {step} of {evidence.asked_steps(run_dir / 'config.json')}" if counted else ""
    return f"{text}, {phase.label}{steps}"


class Execution:
    """Owner of the processes of one notebook.

    `stop` ends all of them, and so does the end of this process.
    """

    def __init__(self, planned: Planned, folder: Path, deadline: float | None) -> None:
        """Create the notebook's folder and start papermill."""
        self.planned, self.folder, self.deadline = planned, folder, deadline
        self.executed = folder / f"{planned.name}.ipynb"
        self.date, self._began = _now(), time.monotonic()
        self._oom_kills_before = evidence.oom_kills()
        self._ended_by: Literal["timeout", "not run"] | None = None
        self._because = ""
        folder.mkdir(parents=True)
        # In YAML the values keep their types.
        (folder / PARAMETERS_FILE).write_text(yaml.safe_dump(planned.parameters))
        command = [*PYTHON, "-m", "papermill", str(planned.path), str(self.executed)]
        command += ["-f", str(folder / PARAMETERS_FILE), "--cwd", str(planned.path.parent)]
        environment = {"GALLERY_RUNS_DIR": str(folder / RUNS_FOLDER), "PYTHONUNBUFFERED": "1"}
        with (folder / LOG_FILE).open("w") as log:
            self._process = start_supervised(
                [*command, "--log-output", "--no-progress-bar"],
                environment,
                stdout=log,
                stderr=log,
            )

    @property
    def seconds(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._began

    def running(self) -> bool:
        """Return whether the notebook still runs; end it if it exceeds its deadline."""
        if self.deadline is not None and self.seconds > self.deadline:
            self.stop("timeout", f"still running at its deadline of {self.deadline:g} s")
        return self._process.poll() is None

    def progress(self) -> str:
        """Return the notebook's progress in words."""
        return progress(self.folder, self.planned.cells)

    def stop(self, ended_by: Literal["timeout", "not run"], because: str) -> None:
        """End every process of the notebook for the given reason; return when they are gone."""
        if self._process.poll() is None:
            self._ended_by, self._because = ended_by, because
            end_supervised(self._process)

    def judged(self) -> tuple[Outcome, list[dict[str, Any]]]:
        """Wait for the end, and return the outcome and the comparisons of the notebook.

        An exception while a notebook is judged makes this notebook `failed`; the batch goes on.
        """
        try:
            ended = Ended(
                shell_exit_code(self._process.wait()),
                self._ended_by,
                self._because,
                evidence.oom_kills() - self._oom_kills_before,
            )
            outcome = evidence.judge(self.executed, ended, measures=self.planned.measures)
            with contextlib.suppress(InputError):  # the outcome reports a damaged comparison
                return outcome, comparisons_in(self.folder / RUNS_FOLDER)
            return outcome, []
        except Exception as error:
            reason = f"what it left cannot be judged ({type(error).__name__}: {error})"
            return Outcome("failed", reason, 0, len(self.planned.cells), []), []


class Observer:
    """Receiver of a batch's events; this one ignores them all."""

    def started(self, name: str) -> None:
        """Receive the start of a notebook's process."""

    def ended(self, name: str, record: Record) -> None:
        """Receive the outcome of a notebook, or its earlier outcome if that one is kept."""

    def in_progress(self, running: Sequence[Execution], report: Report) -> None:
        """Receive the state of the batch, several times a second."""


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _waiting(planned: Planned, attempts: int = 0) -> Record:
    return Record(
        status="not run",
        reason="its turn has not come",
        seconds=0.0,
        date=None,
        attempts=attempts,
        kept=False,
        parameters=planned.parameters,
        digest=planned.digest,
        folder=None,
    )


@contextlib.contextmanager
def _only_runner(folder: Path) -> Iterator[None]:
    """Lock the folder against a second runner; the lock goes with the process.

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


def _records(folder: Path, plan: Sequence[Planned], resume: bool) -> dict[str, Record]:
    """Return a record for each planned notebook.

    With `resume`, what passed in the folder's interrupted batch is kept. Of other notebooks, only
    the number of attempts counts.
    """
    there = resume and (folder / REPORT_FILE).exists()
    before = read_report(folder).notebooks if there else {}
    records = {}
    for planned in plan:
        record = before.get(planned.name)
        records[planned.name] = _waiting(planned, record.attempts if record else 0)
        if (
            record
            and record.status == "passed"
            and record.digest == planned.digest
            and record.folder
            and (folder / record.folder).is_dir()
        ):
            records[planned.name] = dataclasses.replace(record, kept=True)
    return records


class _Batch:
    """State of a running batch."""

    def __init__(
        self, folder: Path, report: Report, plan: Sequence[Planned], observer: Observer
    ) -> None:
        self.folder, self.report, self.observer = folder, report, observer
        self._began = time.monotonic()
        self.waiting = [planned for planned in plan if not report.notebooks[planned.name].kept]
        self.executed: list[Path] = []  # whole notebooks, with outputs
        for name, record in report.notebooks.items():
            if record.kept:
                observer.ended(name, record)
        self.bring_up_to_date()

    def bring_up_to_date(self, **changes: Any) -> None:
        """Apply `changes` to the report and write it."""
        seconds = time.monotonic() - self._began
        self.report = dataclasses.replace(self.report, seconds=seconds, **changes)
        reports.write(self.folder, self.report)

    def run_next(self, config: BatchConfig, arrived: Sequence[str]) -> None:
        """Run the next notebook to its end, or until the name of a signal is in `arrived`."""
        planned = self.waiting.pop(0)
        execution = Execution(planned, paths.free_name(self.folder, planned.name), config.deadline)
        try:
            self.observer.started(planned.name)
            while execution.running():
                self.observer.in_progress([execution], self.report)
                time.sleep(TICK_SECONDS)
                if arrived:
                    because = f"interrupted by {arrived[0]} after {execution.seconds:.0f} s"
                    execution.stop("not run", because)
        finally:
            execution.stop("not run", "the runner failed")
        record = self._record(execution)
        self.observer.ended(planned.name, record)
        self.bring_up_to_date(notebooks={**self.report.notebooks, planned.name: record})

    def _record(self, execution: Execution) -> Record:
        """Return the result of a notebook that has ended."""
        seconds, planned = execution.seconds, execution.planned
        outcome, comparisons = execution.judged()
        if outcome.cells_run:
            self.executed.append(execution.executed)
        unchanged = digest(planned.path, planned.parameters) == planned.digest
        return Record(
            status=outcome.status,
            reason=outcome.reason,
            seconds=round(seconds, 1),
            date=execution.date,
            attempts=self.report.notebooks[planned.name].attempts + 1,
            kept=False,
            parameters=planned.parameters,
            digest=planned.digest if unchanged else "changed while it ran",
            folder=execution.folder.name,
            cells_run=outcome.cells_run,
            cells=outcome.cells,
            log_tail=outcome.log_tail,
            comparisons=comparisons,
        )

    def interrupt(self, name: str) -> None:
        """Note of every waiting notebook that the signal `name` came before its turn."""
        notebooks = dict(self.report.notebooks)
        for planned in self.waiting:
            if notebooks[planned.name].status == "not run":
                notebooks[planned.name] = dataclasses.replace(
                    notebooks[planned.name], reason=f"interrupted by {name} before its turn"
                )
        self.bring_up_to_date(notebooks=notebooks, interrupted_by=name)


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
        InputError: before anything starts, for an unsuitable folder.
    """
    folder = paths.output_folder(
        config.out, "gallery", resume=config.resume, file=REPORT_FILE, work="batch"
    )
    with _only_runner(folder), _noted_signals() as arrived:
        report = Report(
            command=shlex.join(command),
            began=_now(),
            ended=None,
            interrupted_by=None,
            seconds=0.0,
            options=options.to_mapping(config),
            machine=machine(),
            notebooks=_records(folder, plan, config.resume),
        )
        batch = _Batch(folder, report, plan, observer or Observer())
        while batch.waiting and not arrived:
            batch.run_next(config, arrived)
        if arrived:
            batch.interrupt(arrived[0])
        # Not earlier: it takes a core from notebooks that are still measured.
        for executed in batch.executed:
            reports.write_notebook_page(executed)
        batch.bring_up_to_date(ended=_now())
    return folder, batch.report
