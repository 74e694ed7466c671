"""Diagnosis of a failed run from the reports of its ranks and its exit code.

A rank that fails writes a report. The process that started the ranks writes it for a rank that was
killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import re
import signal
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from gallery_lib import errors
from gallery_lib.console.exit_code import refusal
from gallery_lib.errors import GalleryError, InputError, RunFailed, SilentRank
from gallery_lib.system.files import read_json, write_json
from gallery_lib.system.processes import SOCKETS_VARIABLE, signal_of_exit_code

ERROR_FILES = "error-rank*.json"
_KILLED = "Killed"
_STDERR_LINES_SHOWN = 15
_TELL_THEIR_CAUSE = ("SilentRank", "Diverged", "OutOfMemory")


@dataclass(frozen=True)
class ErrorReport:
    """The error that made one rank fail, or the signal that ended it."""

    rank: int
    type: str  # class name of the error
    message: str
    own_line: str | None = None  # the user's own line of code, if the error arose there
    traceback: str = ""
    exit_code: int = 1
    parameter: str | None = None  # of an InputError
    signal: int | None = None  # that ended the process

    @classmethod
    def of_killed(cls, rank: int, process: int, number: int) -> ErrorReport:
        """Return the report about a rank whose process was ended by signal `number`."""
        what = f"killed by {signal.Signals(number).name}"
        if number == signal.SIGKILL:
            what += ": by someone, or by the kernel because memory ran out"
        message = f"rank {rank} (process {process}) was {what}"
        return cls(rank, _KILLED, message, exit_code=128 + number, signal=number)

    def write(self, run_dir: Path) -> None:
        """Write the report where the launcher reads it: in the run's folder, or else in memory.

        The report about a killed rank stands beside one that the rank may have written itself.
        """
        name = f"{self.rank}-killed" if self.type == _KILLED else str(self.rank)
        for folder in (run_dir, Path(os.environ.get(SOCKETS_VARIABLE, run_dir))):
            with contextlib.suppress(OSError):  # a full disk
                write_json(folder / ERROR_FILES.replace("*", name), dataclasses.asdict(self))
                return


def end_of_run(run_dir: Path, rank: int, reason: str) -> NoReturn:
    """End this process, and report why."""
    ErrorReport(rank, SilentRank.__name__, reason).write(run_dir)
    with contextlib.suppress(OSError):  # a full disk
        print(reason, file=sys.stderr, flush=True)
    os._exit(SilentRank.exit_code)


_NO_MEMORY = {
    "the GPU": r"(?:CUDA|HIP)(?: error:)? out of memory",
    "the host": r"DefaultCPUAllocator: |[Cc]annot allocate memory|can't allocate memory",
}
_NO_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def what_ran_out(error: BaseException) -> str | None:
    """Return in a sentence whether memory or disk ran out, if that is why `error` arose.

    A compiler raises an error of its own around torch's.
    """
    if isinstance(error, OSError) and error.errno in _NO_DISK:
        return refusal(error)
    for one in filter(None, [error, error.__cause__, error.__context__]):
        text = str(one)
        where = next((name for name, words in _NO_MEMORY.items() if re.search(words, text)), None)
        if where is None and isinstance(one, MemoryError):
            where = "the host"
        if where is not None:
            wanted = re.search(r"[Tt]r(?:ied|ying) to allocate ([\d.]+ \w+)", text)
            amount = f" when {wanted[1]} were asked for" if wanted else ""
            busy = ", or end what else uses it (nvidia-smi lists it)" if where == "the GPU" else ""
            return (
                f"the memory of {where} ran out{amount}. Use a smaller batch (--batch_size), "
                f"smaller inputs, or mixed precision (--amp_level O1){busy}"
            )
    return None


def _reports(*folders: Path) -> list[ErrorReport]:
    """Return the ranks' error reports, the one to blame first; invalid files are left out.

    Wrong input comes first, then errors that tell their cause, then a killed rank. Otherwise the
    rank that failed first is to blame: others fail because it is gone.
    """
    reports = []
    for path in {path for folder in folders for path in folder.glob(ERROR_FILES)}:
        with contextlib.suppress(InputError, FileNotFoundError):
            reports.append((path.stat().st_mtime_ns, read_json(path, ErrorReport, again="")))

    def order(entry: tuple[int, ErrorReport]) -> tuple[bool, bool, bool, int]:
        written_at, one = entry
        return (
            one.exit_code != InputError.exit_code,
            one.type not in _TELL_THEIR_CAUSE,
            one.type != _KILLED,
            written_at,
        )

    return [report for _, report in sorted(reports, key=order)]


def of_run(
    run_dir: Path,
    code: int,
    output: str,
    last_lines: Iterable[str],
    *,
    compiled_first: bool,
    in_memory: Path | None = None,
) -> GalleryError:
    """Return the error to raise for a run that failed.

    Args:
        run_dir: the run's folder.
        code: exit code of the run.
        output: standard error of what started the ranks, shown where no rank has reported anything.
        last_lines: last log lines of rank 0.
        compiled_first: whether the run was to load compiled code and took no step.
        in_memory: where a report is that the run's folder could not take.
    """
    reports = _reports(run_dir, in_memory or run_dir)
    first = reports[0] if reports else None
    if first is not None and first.exit_code == InputError.exit_code:
        return InputError(first.message, parameter=first.parameter)
    kind = getattr(errors, first.type, None) if first is not None else None
    if first is not None and isinstance(kind, type) and issubclass(kind, RunFailed):
        line = f"\n  {first.own_line}" if first.own_line else ""
        return kind(f"the run in {run_dir}: {first.message.rstrip('.')}.{line}")
    log = "\n".join(last_lines) or "(nothing was logged)"
    failed = RunFailed(
        f"the run in {run_dir} did not finish: {_failure_text(run_dir, code, first, output)}\n"
        f"Last log lines of rank 0:\n{log}"
    )
    ended_by = (first and first.signal) or signal_of_exit_code(code)
    in_compiler = any("torch/_inductor/" in report.traceback for report in reports)
    failed.suspects_compiled_code = compiled_first and (
        in_compiler or ended_by in (signal.SIGBUS, signal.SIGSEGV, signal.SIGILL)
    )
    return failed


def _failure_text(
    run_dir: Path, code: int, report: ErrorReport | None, launcher_stderr: str
) -> str:
    """Return why a run failed, in a sentence, with the details below it.

    `report` is that of the rank to blame. Without one the reason is the signal or exit code of the
    run, with the last lines of `launcher_stderr` for an exit code.
    """
    if report is not None:
        if report.type == _KILLED:
            return f"{report.message}."
        reason = f"rank {report.rank} failed with {report.type}: {report.message}"
        if report.own_line is None:
            return f"{reason}.\n{report.traceback.rstrip()}"
        return (
            f"{reason.rstrip('.')}.\n  {report.own_line}\n"
            f"The whole traceback is in {run_dir}/log-rank{report.rank}.txt."
        )
    if (received := signal_of_exit_code(code)) is not None:
        return (
            f"its processes were ended by {received.name}, from outside or because memory ran out."
        )
    last_lines = launcher_stderr.splitlines()[-_STDERR_LINES_SHOWN:]
    return f"its processes ended with exit code {code}.\n" + "\n".join(last_lines)
