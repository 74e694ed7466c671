"""Run the planned notebooks of a batch one after another, each by papermill under the supervisor.

The supervisor ends every descendant (kernel, torchrun, workers, loaders) when papermill ends, on
request, and when this process is gone for whatever reason. The report is written after every
notebook. SIGINT and SIGTERM only set a mark that the loop sees, so nothing is ever left half done:
the running notebook is ended, waiting ones become `not run`, and the report says so.

Progress is a line that is drawn over on a terminal, and a line now and then anywhere else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from rich.console import Console
from rich.live import Live
from rich.text import Text

from gallery_lib.config import BatchConfig, options
from gallery_lib.console.phases import PHASES_FILE, read_phases
from gallery_lib.console.progress import fit, redraws
from gallery_lib.console.table import duration
from gallery_lib.console.visible import unescaped, visible
from gallery_lib.errors import InputError
from gallery_lib.measure.comparison.result import read_comparison
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
from gallery_lib.report import verdict
from gallery_lib.system import paths
from gallery_lib.system.files import LockHeld, locked
from gallery_lib.system.processes import PYTHON, end_supervised, shell_exit_code, start_supervised

_TICK_SECONDS = 0.1
_LOOK_SECONDS = 1.0  # looking takes CPU time from the measured notebook
_LINE_SECONDS, _LINE_PART = 20.0, 0.5  # between two plain lines; part of the time so far
_PARAMETERS_FILE = "parameters.yaml"
_SOURCE_COLUMNS = 50


def progress(folder: Path, cells: Sequence[str]) -> str:
    """Return the progress of the notebook in `folder`, whose cells have these sources.

    For example: `cell 5 of 24, notebook.compare(settings), compiling, graph 1`.
    """
    number = evidence.started_cell(evidence.read_log(folder))
    if number is None:
        return "starting"
    # Of several lines, the last: it uses what those before it have bound.
    last = cells[number - 1].strip().rpartition("\n")[2].strip()
    said = [f"cell {number} of {len(cells)}", fit(last, _SOURCE_COLUMNS)]
    phases = [
        found[-1]
        for file in (folder / RUNS_FOLDER).rglob(PHASES_FILE)
        if not (file.parent / "results.json").exists() and (found := read_phases(file.parent))
    ]
    if phases:
        said.append(max(phases, key=lambda phase: phase.began).label)
    return ", ".join(filter(None, said))


class _Display:
    """What a person sees of a batch of `count` notebooks while it runs."""

    def __init__(self, count: int, live: Live | None) -> None:
        self._count, self._live = count, live
        self._began = self._said = time.monotonic()
        self._looked, self._ended = 0.0, 0
        self._compared: set[Path] = set()

    def started(self, name: str) -> None:
        if self._count > 1:
            self._print(f"{name}: started")

    def ended(self, name: str, record: Record) -> None:
        self._ended += 1
        if self._count > 1:
            details = "; ".join(filter(None, [record.reason, reports.speedups(record)]))
            after = "" if record.kept else f" after {duration(record.seconds)}"
            self._print(
                f"[{self._ended}/{self._count}] {name}: {reports.status(record)}{after}"
                f"{': ' if details else ''}{details}"
            )

    def look(self, name: str, execution: _Execution) -> None:
        """Show the verdict of a single notebook once it is measured, and what is running."""
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        found = set((execution.folder / RUNS_FOLDER).rglob("comparison.json"))
        for path in sorted(found - self._compared if self._count == 1 else ()):
            self._compared.add(path)
            with contextlib.suppress(InputError):  # it makes the notebook fail
                line = verdict.lines(read_comparison(path.parent))[0]
                self._print(f"{line} The notebook goes on.")
        if self._live:
            line = f"{name}: running, {execution.progress()}, {duration(execution.seconds)}"
            self._live.update(Text(visible(line)), refresh=True)
        elif now - self._said >= max(_LINE_SECONDS, _LINE_PART * (now - self._began)):
            self._said = now
            self._print(f"{name}: {execution.progress()}, {duration(execution.seconds)}")

    def _print(self, line: str) -> None:
        if self._live:
            self._live.console.print(visible(line), markup=False, highlight=False, soft_wrap=True)
        else:
            print(line, flush=True)


@contextlib.contextmanager
def _display(count: int) -> Iterator[_Display]:
    if not redraws(sys.stdout):
        yield _Display(count, None)
        return
    with Live(
        console=Console(file=unescaped(sys.stdout)),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,  # it would write to the unescaped stream
        redirect_stderr=False,
    ) as live:
        yield _Display(count, live)


class _Execution:
    """Owner of the processes of one notebook.

    `stop` ends all of them, and so does the end of this process.
    """

    def __init__(self, planned: Planned, folder: Path) -> None:
        self.planned, self.folder = planned, folder
        self.executed = folder / f"{planned.name}.ipynb"
        self.date, self._began = _now(), time.monotonic()
        self._oom_kills_before = evidence.oom_kills()
        self._ended_by: Literal["timeout", "not run"] | None = None
        self._because = ""
        folder.mkdir(parents=True)
        # In YAML the values keep their types.
        (folder / _PARAMETERS_FILE).write_text(yaml.safe_dump(planned.parameters))
        command = [*PYTHON, "-m", "papermill", str(planned.path), str(self.executed)]
        command += ["-f", str(folder / _PARAMETERS_FILE), "--cwd", str(planned.path.parent)]
        environment = {"GALLERY_RUNS_DIR": str(folder / RUNS_FOLDER), "PYTHONUNBUFFERED": "1"}
        with (folder / LOG_FILE).open("w") as log:
            self._process = start_supervised(
                [*command, "--log-output", "--no-progress-bar"], environment, stdout=log, stderr=log
            )

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def running(self) -> bool:
        return self._process.poll() is None

    def progress(self) -> str:
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


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


@contextlib.contextmanager
def _only_runner(folder: Path) -> Iterator[None]:
    """Lock the folder against a second runner; the lock goes with the process."""
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
    before = {
        number: signal.signal(number, lambda n, _: arrived.append(signal.Signals(n).name))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
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
        earlier = before.get(planned.name)
        same = earlier and earlier.status == "passed" and earlier.digest == planned.digest
        if earlier and same and earlier.folder and (folder / earlier.folder).is_dir():
            records[planned.name] = dataclasses.replace(earlier, kept=True)
            continue
        records[planned.name] = Record(
            status="not run",
            reason="its turn has not come",
            seconds=0.0,
            date=None,
            attempts=earlier.attempts if earlier else 0,
            kept=False,
            parameters=planned.parameters,
            digest=planned.digest,
            folder=None,
        )
    return records


def _run_to_its_end(
    execution: _Execution, deadline: float | None, arrived: Sequence[str], display: _Display
) -> None:
    """Wait for the end of the notebook, for its deadline, or for a signal."""
    try:
        while execution.running():
            display.look(execution.planned.name, execution)
            time.sleep(_TICK_SECONDS)
            if arrived:
                because = f"interrupted by {arrived[0]} after {execution.seconds:.0f} s"
                execution.stop("not run", because)
            elif deadline is not None and execution.seconds > deadline:
                execution.stop("timeout", f"still running at its deadline of {deadline:g} s")
    finally:
        execution.stop("not run", "the runner failed")


def _record_of(execution: _Execution, attempts: int) -> Record:
    """Return the result of a notebook that has ended."""
    seconds, planned = execution.seconds, execution.planned
    outcome, comparisons = execution.judged()
    unchanged = digest(planned.path, planned.parameters) == planned.digest
    return Record(
        status=outcome.status,
        reason=outcome.reason,
        seconds=round(seconds, 1),
        date=execution.date,
        attempts=attempts,
        kept=False,
        parameters=planned.parameters,
        digest=planned.digest if unchanged else "changed while it ran",
        folder=execution.folder.name,
        cells_run=outcome.cells_run,
        cells=outcome.cells,
        log_tail=outcome.log_tail,
        comparisons=comparisons,
    )


def run(
    plan: Sequence[Planned], config: BatchConfig, *, command: Sequence[str] = ("gallery", "run")
) -> tuple[Path, Report]:
    """Run the plan to its end; return the folder of the batch and its report.

    An interrupt raises no exception: `interrupted_by` of the report names the signal.

    Raises:
        InputError: before anything starts, for an unsuitable folder.
    """
    folder = paths.output_folder(
        config.out, "gallery", resume=config.resume, file=REPORT_FILE, work="batch"
    )
    began = time.monotonic()
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

        def write(**changes: Any) -> Report:
            seconds = time.monotonic() - began
            changed = dataclasses.replace(report, seconds=seconds, **changes)
            reports.write(folder, changed)
            return changed

        report, executed = write(), []
        with _display(len(plan)) as display:
            for planned in plan:
                record = report.notebooks[planned.name]
                if record.kept:
                    display.ended(planned.name, record)
                    continue
                if arrived:
                    because = f"interrupted by {arrived[0]} before its turn"
                    record = dataclasses.replace(record, reason=because)
                else:
                    execution = _Execution(planned, paths.free_name(folder, planned.name))
                    display.started(planned.name)
                    _run_to_its_end(execution, config.deadline, arrived, display)
                    record = _record_of(execution, record.attempts + 1)
                    executed += [execution.executed] if record.cells_run else []
                    display.ended(planned.name, record)
                report = write(notebooks={**report.notebooks, planned.name: record})
        # Not earlier: it takes a core from notebooks that are still measured.
        for notebook in executed:
            reports.write_notebook_page(notebook)
        report = write(ended=_now(), interrupted_by=arrived[0] if arrived else None)
    return folder, report
