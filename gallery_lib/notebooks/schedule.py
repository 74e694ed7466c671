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
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from gallery_lib.config import BatchConfig
from gallery_lib.console.progress import Progress, fit, redraws
from gallery_lib.console.text import duration, visible
from gallery_lib.errors import InputError
from gallery_lib.measure.comparison.result import read_comparison
from gallery_lib.notebooks import evidence, reports
from gallery_lib.notebooks.evidence import LOG_FILE, RUNS_FOLDER, Ended
from gallery_lib.notebooks.plan import Planned, digest, read_notebook
from gallery_lib.notebooks.reports import (
    REPORT_FILE,
    Compared,
    Record,
    Report,
    machine,
    read_report,
)
from gallery_lib.system import paths
from gallery_lib.system.files import LockHeld, locked
from gallery_lib.system.processes import PYTHON, end_supervised, shell_exit_code, start_supervised

_TICK_SECONDS = 0.1
_LOOK_SECONDS, _LINE_SECONDS = 1.0, 10.0  # looking takes CPU time from the measured notebook
_PARAMETERS_FILE = "parameters.yaml"
_SOURCE_COLUMNS = 50


def where(executed: Path) -> str:
    """Return how far the notebook is that papermill writes to `executed`.

    For example: `cell 5 of 24, notebook.compare(settings)`.
    """
    number = evidence.started_cell(evidence.read_log(executed.parent))
    with contextlib.suppress(InputError, IndexError):  # not written yet, or half
        cells = read_notebook(executed).cells
        # Of several lines, the last: it uses what those before it have bound.
        last = cells[number - 1].source.strip().rpartition("\n")[2].strip() if number else ""
        said = [f"cell {number} of {len(cells)}" if number else "", fit(last, _SOURCE_COLUMNS)]
        return ", ".join(filter(None, said)) or "starting"
    return "starting"


def _run_notebook(
    planned: Planned,
    executed: Path,
    deadline: float | None,
    arrived: Sequence[str],
    progress: Progress,
) -> Ended:
    """Run a notebook until its end, its deadline, or a signal in `arrived`; say how it ended.

    None of its processes is left then.
    """
    folder, began, looked = executed.parent, time.monotonic(), 0.0
    every = _LOOK_SECONDS if redraws(sys.stderr) else _LINE_SECONDS
    # In YAML the values keep their types.
    (folder / _PARAMETERS_FILE).write_text(yaml.safe_dump(planned.parameters))
    command = [*PYTHON, "-m", "papermill", str(planned.path), str(executed), "--log-output"]
    command += ["-f", str(folder / _PARAMETERS_FILE), "--cwd", str(planned.path.parent)]
    environment = {"GALLERY_RUNS_DIR": str(folder / RUNS_FOLDER), "PYTHONUNBUFFERED": "1"}
    with (folder / LOG_FILE).open("w") as log:
        process = start_supervised(
            [*command, "--no-progress-bar"], environment, stdout=log, stderr=log
        )
    try:
        while process.poll() is None:
            seconds = time.monotonic() - began
            if arrived:
                return Ended(0, "not run", f"interrupted by {arrived[0]} after {seconds:.0f} s")
            if deadline is not None and seconds > deadline:
                return Ended(0, "timeout", f"still running at its deadline of {deadline:g} s")
            if seconds - looked >= every:
                looked = seconds
                label = f"{planned.name}: running, {where(executed)}"
                progress.show(visible(label))
            time.sleep(_TICK_SECONDS)
        return Ended(shell_exit_code(process.wait()))
    finally:
        end_supervised(process)


def _comparisons(folder: Path) -> list[Compared]:
    """Return the comparisons below a folder; none where one is damaged, as the outcome says."""
    files = sorted(folder.rglob("comparison.json"))
    with contextlib.suppress(InputError):
        return [Compared.of(read_comparison(path.parent)) for path in files]
    return []


def _record_of(
    planned: Planned, executed: Path, ended: Ended, date: str, seconds: float, attempts: int
) -> Record:
    """Return the result of a notebook that has ended."""
    outcome = evidence.judge(executed, ended, measures=planned.measures)
    unchanged = digest(planned.path, planned.parameters) == planned.digest
    return Record(
        **vars(outcome),
        seconds=round(seconds, 1),
        date=date,
        attempts=attempts,
        kept=False,
        parameters=planned.parameters,
        digest=planned.digest if unchanged else "changed while it ran",
        folder=executed.parent.name,
        comparisons=_comparisons(executed.parent / RUNS_FOLDER),
    )


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


@contextlib.contextmanager
def _only_runner(folder: Path) -> Iterator[None]:
    """Lock the folder against a second runner; the lock goes with the process."""
    try:
        with locked(folder / ".lock", wait=False):
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


def _line(name: str, record: Record) -> str:
    """Return what is said of a notebook that has ended, one of several."""
    details = "; ".join(filter(None, [record.reason, reports.speedups(record)]))
    after = "" if record.kept else f" after {duration(record.seconds)}"
    return f"{name}: {reports.status(record)}{after}{': ' if details else ''}{details}"


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
    began, progress = time.monotonic(), Progress()
    with _only_runner(folder), _noted_signals() as arrived:
        report = Report(
            command=shlex.join(command),
            began=_now(),
            ended=None,
            interrupted_by=None,
            seconds=0.0,
            options=dataclasses.asdict(config),
            machine=machine(),
            notebooks=_records(folder, plan, config.resume),
        )

        def write(**changes: Any) -> Report:
            seconds = time.monotonic() - began
            changed = dataclasses.replace(report, seconds=seconds, **changes)
            reports.write(folder, changed)
            return changed

        report = write()
        for number, planned in enumerate(plan, 1):
            record = report.notebooks[planned.name]
            if arrived:
                because = f"interrupted by {arrived[0]} before its turn"
                record = record if record.kept else dataclasses.replace(record, reason=because)
            elif not record.kept:
                executed = paths.free_name(folder, planned.name) / f"{planned.name}.ipynb"
                executed.parent.mkdir(parents=True)
                date, start = _now(), time.monotonic()
                ended = _run_notebook(planned, executed, config.deadline, arrived, progress)
                seconds = time.monotonic() - start
                record = _record_of(planned, executed, ended, date, seconds, record.attempts + 1)
            if len(plan) > 1 and (record.kept or record.date):
                progress.say(visible(f"[{number}/{len(plan)}] {_line(planned.name, record)}"))
            report = write(notebooks={**report.notebooks, planned.name: record})
        progress.clear()
        report = write(ended=_now(), interrupted_by=arrived[0] if arrived else None)
    return folder, report
