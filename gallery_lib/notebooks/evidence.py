"""Judgement of whether a notebook really ran, from the evidence that it left behind.

papermill's own metadata is not read. papermill marks dead and never-run cells `completed`, and ends
with exit code 0 when a cell leaves with SystemExit. What counts is how the process ended and who
ended it, the error outputs, and an execution count in every code cell. Every training run that the
notebook started must have valid results, with the requested number of steps and a loss that fell. A
notebook passes when none of these speaks against it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gallery_lib.console.text import visible
from gallery_lib.errors import InputError
from gallery_lib.measure.comparison.result import read_comparison
from gallery_lib.notebooks.plan import Cell, read_notebook
from gallery_lib.system.files import read_json
from gallery_lib.system.processes import signal_of_exit_code
from gallery_lib.train.results import read_results

Status = Literal["passed", "failed", "timeout", "kernel died", "not run"]

DEAD_KERNEL_EXIT_CODE = 138
"""Exit code of papermill when the kernel is gone."""
LOG_FILE = "papermill.txt"
RUNS_FOLDER = "runs"
TAIL_LINES = 20
MINIMUM_STEPS_TO_JUDGE = 8
"""Number of steps from which on the loss must fall; shorter runs may end before it does."""

_REASON_CHARACTERS = 300
_PAPERMILLS_NOTE = "papermill-error-cell-tag"


@dataclass(frozen=True)
class Ended:
    """How the process of a notebook ended.

    `ended_by` is the runner's reason for ending the process, and `because` says it in words.
    `ended_by` is None if the process ended by itself.
    """

    exit_code: int
    ended_by: Literal["timeout", "not run"] | None = None
    because: str = ""


@dataclass(frozen=True)
class Outcome:
    """Status of a notebook according to the evidence, with the reason and the end of the log."""

    status: Status
    reason: str | None  # None for a notebook that passed
    cells_run: int
    cells: int
    log_tail: list[str]


def read_log(folder: Path) -> list[str]:
    """Return the lines that papermill and the cells printed, without terminal escapes."""
    path = folder / LOG_FILE
    text = path.read_text(errors="replace") if path.exists() else ""
    return [line for line in (visible(raw).rstrip() for raw in text.splitlines()) if line]


def started_cell(log: list[str]) -> int | None:
    """Return the number of the last cell that papermill began; None before the first.

    Numbers start at 1, and text cells count as well.
    """
    for line in reversed(log):
        if match := re.match(r"Executing Cell (\d+)-*$", line):
            return int(match[1])
    return None


def _tail(log: list[str]) -> list[str]:
    """Return the last lines of the log; for a dead kernel, those before papermill's traceback."""
    if any("DeadKernelError" in line for line in log):
        ended = max((i for i, line in enumerate(log) if line.startswith("Ending Cell")), default=0)
        traces = [i for i, line in enumerate(log) if i > ended and line.startswith("Traceback ")]
        log = log[: traces[0]] if traces else log
    return log[-TAIL_LINES:]


def _first_line(text: str) -> str:
    line = next((line for line in visible(text).splitlines() if line.strip()), "")
    return line if len(line) <= _REASON_CHARACTERS else line[:_REASON_CHARACTERS] + " …"


def _where(cells: list[Cell], number: int | None) -> str:
    if number is None:
        return "before its first cell"
    source = cells[number - 1].source if 0 < number <= len(cells) else ""
    return f"in cell {number} of {len(cells)}" + (f", `{_first_line(source)}`" if source else "")


def _error_of(cells: list[Cell]) -> str | None:
    """Return the reason that the first error in a cell gives; None without errors."""
    for number, cell in enumerate(cells, 1):
        name, value = cell.error or ("SystemExit", "")
        if name != "SystemExit":  # cells that never ran are the evidence for that one
            said = f"{visible(name)}: {_first_line(value)}".rstrip(": ").rstrip(".")
            return f"{said}, {_where(cells, number)}"
    return None


def _problem_of_run(run_dir: Path, name: str, steps: int) -> str | None:
    results = read_results(run_dir)
    if results.steps != steps:
        return f"the run {name} was to take {steps} steps, its results say {results.steps}"
    losses = [loss for _, loss in results.loss["curve"]]
    if any(loss is None for loss in losses):
        return f"the loss of the run {name} is not finite"
    quarter = max(1, len(losses) // 4)  # single steps are too noisy to compare
    if len(losses) < MINIMUM_STEPS_TO_JUDGE or sum(losses[-quarter:]) < sum(losses[:quarter]):
        return None
    return (
        f"the loss of the run {name} did not fall ({losses[0]:.3f} → {losses[-1]:.3f} in "
        f"{len(losses)} steps)"
    )


def problem_of_runs(folder: Path, measures: bool) -> str | None:
    """Return what is wrong with the training runs below `folder`; None when nothing is.

    Args:
        folder: the folder of the notebook's runs.
        measures: whether the notebook compares two variants, so that there must be a comparison.
    """
    comparisons = sorted(folder.rglob("comparison.json"))
    try:
        for path in sorted(folder.rglob("config.json")):
            steps = read_json(path, dict[str, Any], again="").get("max_steps")
            name = str(path.parent.relative_to(folder))
            # A model has a `config.json` of its own, which asks for no steps.
            if steps and (problem := _problem_of_run(path.parent, name, steps)):
                return problem
        for path in comparisons:
            read_comparison(path.parent)
    except InputError as error:
        return f"it left results that are not valid: {error}"
    return "it ran, but left no comparison" if measures and not comparisons else None


def judge(executed: Path, ended: Ended, *, measures: bool) -> Outcome:
    """Return the outcome of the notebook that papermill wrote to `executed`.

    Args:
        executed: the executed notebook; its folder holds its log and its runs.
        ended: how the notebook's process ended.
        measures: whether the notebook compares two variants, so that there must be a comparison.
    """
    log = read_log(executed.parent)
    try:
        notebook = read_notebook(executed)
        # Without the notes that papermill adds above an error.
        cells = [cell for cell in notebook.cells if _PAPERMILLS_NOTE not in cell.tags]
        code = notebook.code
    except InputError:  # papermill wrote nothing, or only half of it
        cells, code = [], []
    status, reason = _verdict(log, cells, code, ended)
    if status == "passed" and (problem := problem_of_runs(executed.parent / RUNS_FOLDER, measures)):
        status, reason = "failed", problem
    cells_run = sum(cell.execution_count is not None for cell in code)
    return Outcome(status, reason, cells_run, len(code), _tail(log))


def _verdict(
    log: list[str], cells: list[Cell], code: list[Cell], ended: Ended
) -> tuple[Status, str | None]:
    """Return status and reason according to the cells and to how the process ended."""
    at, line = _where(cells, started_cell(log)), log[-1] if log else "it said nothing"
    if ended.ended_by is not None:
        return ended.ended_by, f"{ended.because}, {at}"
    if ended.exit_code == DEAD_KERNEL_EXIT_CODE:
        return "kernel died", f"the kernel was gone, {at}"
    if (number := signal_of_exit_code(ended.exit_code)) is not None:
        someone = "by someone or because memory ran out"
        return "failed", f"papermill was killed by {number.name}, {someone}, {at}"
    if error := _error_of(cells):
        return "failed", error
    exit_code = f"papermill ended with exit code {ended.exit_code}"
    if not cells:
        return "failed", f"{exit_code} before anything ran: {line}"
    if missing := [cell for cell in code if cell.execution_count is None]:
        first = _where(cells, cells.index(missing[0]) + 1).removeprefix("in ")
        left = any(cell.error and cell.error[0] == "SystemExit" for cell in code)
        why = "; a cell left with SystemExit" if left else ""
        ran = f"{len(missing)} of {len(code)} code cells never ran"
        return "failed", f"{ran}{why}; the first is {first}"
    return ("failed", f"{exit_code}: {line}") if ended.exit_code else ("passed", None)
