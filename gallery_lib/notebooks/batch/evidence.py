"""Whether a notebook really ran, from what it left behind; papermill's own metadata is not read.

papermill marks dead and never-run cells `completed`, and ends with exit code 0 when a cell leaves with SystemExit.
What counts instead: how the process ended and who ended it, the error outputs, an execution count in every code cell,
and, for every training run that the notebook started, valid results with the asked number of steps and a loss that
fell. A notebook passes when none of these speaks against it.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gallery_lib.errors import InputError
from gallery_lib.measure.comparison.result import read_comparison
from gallery_lib.notebooks.batch.notebook_file import Cell, read_notebook
from gallery_lib.system.json_files import read_json
from gallery_lib.train.results import read_results
from gallery_lib.train.run_log import last_step

Status = Literal["passed", "failed", "timeout", "kernel died", "out of memory", "not run"]

DEAD_KERNEL_EXIT_CODE = 138
"""What papermill ends with when the kernel is gone."""
PORT_TAKEN = "ZMQError: Address already in use"
LOG_FILE = "papermill.txt"
RUNS_FOLDER = "runs"
TAIL_LINES = 20
MINIMUM_STEPS_TO_JUDGE = 8
"""Shorter runs may end before their loss falls."""

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_NO_MEMORY = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|not enough memory", re.IGNORECASE
)
_REASON_CHARACTERS = 300


@dataclass(frozen=True)
class Ended:
    """How the process of a notebook ended. `ended_by` is what the runner ended it for, in its words; None: by itself."""

    exit_code: int
    ended_by: Literal["timeout", "out of memory", "not run"] | None
    because: str
    oom_kills: int  # processes of this machine that Linux ended meanwhile because memory ran out


@dataclass(frozen=True)
class Outcome:
    """What the evidence says."""

    status: Status
    reason: str | None  # None for a notebook that passed
    cells_run: int
    cells: int
    log_tail: list[str]


def oom_kills() -> int:
    """How many processes Linux has ended since the machine started because memory ran out; 0 where it does not say."""
    try:
        counts = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(counts.get("oom_kill", 0))


def read_log(folder: Path) -> list[str]:
    """What papermill and the cells printed, without terminal escapes."""
    path = folder / LOG_FILE
    text = path.read_text(errors="replace") if path.exists() else ""
    return [line for line in (without_escapes(raw).rstrip() for raw in text.splitlines()) if line]


def started_cell(log: list[str]) -> int | None:
    """Number, from 1 and with text cells, of the last cell that papermill began; None before the first."""
    for line in reversed(log):
        if match := re.match(r"Executing Cell (\d+)-*$", line):
            return int(match[1])
    return None


def lost_a_port(log: list[str]) -> bool:
    """Whether the kernel cannot have started, because another process took a port that Jupyter had chosen for it."""
    return started_cell(log) is None and any(PORT_TAKEN in line for line in log)


def _tail(log: list[str]) -> list[str]:
    """The last lines of the log; where a kernel died, those before papermill's own traceback."""
    if any("DeadKernelError" in line for line in log):
        ended = max((i for i, line in enumerate(log) if line.startswith("Ending Cell")), default=0)
        log = log[
            : next(
                (i for i, line in enumerate(log) if i > ended and line.startswith("Traceback ")),
                None,
            )
        ]
    return log[-TAIL_LINES:]


def without_escapes(text: str) -> str:
    """Return the text without what a terminal would obey, and XML cannot hold."""
    return _ESCAPES.sub("", text)


def _first_line(text: str) -> str:
    line = next((line for line in without_escapes(text).splitlines() if line.strip()), "")
    return line if len(line) <= _REASON_CHARACTERS else line[:_REASON_CHARACTERS] + " …"


def _where(cells: list[Cell], number: int | None) -> str:
    if number is None:
        return "before its first cell"
    source = cells[number - 1].source if 0 < number <= len(cells) else ""
    return f"in cell {number} of {len(cells)}" + (f", `{_first_line(source)}`" if source else "")


def _error_of(cells: list[Cell], oom_kills: int) -> tuple[Status, str] | None:
    """The first error that a cell shows."""
    for name, value in [cell.error for cell in cells if cell.error]:
        if name == "SystemExit":
            continue  # what it left out tells
        no_memory = name in ("MemoryError", "OutOfMemoryError") or _NO_MEMORY.search(value)
        killed = oom_kills > 0 and "SIGKILL" in value
        return (
            "out of memory" if no_memory or killed else "failed"
        ), f"{without_escapes(name)}: {_first_line(value)}".rstrip(": ")
    return None


def _fell(losses: list[float]) -> bool:
    """Whether the last quarter of the steps has a lower mean loss than the first; single steps are too noisy to ask."""
    quarter = max(1, len(losses) // 4)
    return sum(losses[-quarter:]) < sum(losses[:quarter])


def _problem_of_run(run_dir: Path, name: str, asked: int) -> str | None:
    try:
        results = read_results(run_dir)
    except InputError as error:
        return f"the run {name} left no valid results: {error}"
    if not results.steps == last_step(run_dir) == asked:
        return f"the run {name} was to take {asked} steps, its results say {results.steps}, its log {last_step(run_dir)}"
    losses = [loss for _, loss in results.loss["curve"]]
    if any(loss is None for loss in losses):
        return f"the loss of the run {name} is not finite"
    if len(losses) >= MINIMUM_STEPS_TO_JUDGE and not _fell(losses):
        return f"the loss of the run {name} did not fall ({losses[0]:.3f} → {losses[-1]:.3f} in {len(losses)} steps)"
    return None


def problem_of_runs(folder: Path, measures: bool) -> str | None:
    """What is wrong with the training runs below `folder`; None when nothing is.

    `measures`: the notebook compares two variants, so that there must be a comparison.
    """
    for path in sorted(folder.rglob("config.json")):
        asked = asked_steps(path)
        if asked and (
            problem := _problem_of_run(path.parent, str(path.parent.relative_to(folder)), asked)
        ):
            return problem
    for path in sorted(folder.rglob("comparison.json")):
        try:
            read_comparison(path.parent)
        except InputError as error:
            return f"it left a comparison that cannot be read: {error}"
    if measures and not any(folder.rglob("comparison.json")):
        return "it ran, but left no comparison"
    return None


def asked_steps(config: Path) -> int | None:
    """Return how many steps a run was to take, by its `config.json`; None for a file of something else: a model's own, say."""
    try:
        asked = read_json(config, dict[str, Any], again="").get("max_steps")
    except (InputError, FileNotFoundError):
        return None
    return asked if type(asked) is int else None


def judge(executed: Path, ended: Ended, *, measures: bool) -> Outcome:
    """The status of the notebook that papermill wrote to `executed`, whose folder holds its log and its runs."""
    log = read_log(executed.parent)
    try:
        notebook = read_notebook(executed)
        cells, code = notebook.cells, notebook.code
    except InputError:  # nothing was written, or only half of it
        cells, code = [], []
    missing = [cells.index(cell) + 1 for cell in code if cell.execution_count is None]
    at, said = _where(cells, started_cell(log)), log[-1] if log else "it said nothing"

    def verdict() -> tuple[Status, str | None]:
        if ended.ended_by is not None:
            return ended.ended_by, f"{ended.because}, {at}"
        if ended.exit_code == DEAD_KERNEL_EXIT_CODE or any(
            "Kernel died before replying" in line for line in log
        ):
            if ended.oom_kills:
                return "out of memory", f"Linux ended the kernel because memory ran out, {at}"
            return "kernel died", f"the kernel was gone, {at}"
        if (number := ended.exit_code - 128) in set(signal.Signals):
            return (
                "failed",
                f"papermill was killed by {signal.Signals(number).name}, by someone or because memory ran out, {at}",
            )
        if error := _error_of(cells, ended.oom_kills):
            return error
        if not cells:
            return (
                "failed",
                f"papermill ended with exit code {ended.exit_code} before anything ran: {said}",
            )
        if missing:
            first = _where(cells, missing[0]).removeprefix("in ")
            left = (
                "; a cell left with SystemExit"
                if any(cell.error and cell.error[0] == "SystemExit" for cell in code)
                else ""
            )
            return (
                "failed",
                f"{len(missing)} of {len(code)} code cells never ran{left}; the first is {first}",
            )
        if ended.exit_code:
            return "failed", f"papermill ended with exit code {ended.exit_code}: {said}"
        problem = problem_of_runs(executed.parent / RUNS_FOLDER, measures)
        return ("failed", problem) if problem else ("passed", None)

    status, reason = verdict()
    return Outcome(status, reason, len(code) - len(missing), len(code), _tail(log))


def signature(status: Status, reason: str | None) -> str:
    """What failures of the same kind have in common: the reason without paths, numbers and the place."""
    text = re.sub(r"(in|is) cell \d+.*$", "", reason or "")
    text = re.sub(r"(/[\w.+-]+){2,}", "PATH", text)
    return f"{status}: " + re.sub(r"0x[0-9a-f]+|\d+(\.\d+)?", "#", text).strip(" ,")
