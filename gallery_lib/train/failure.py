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
import resource
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from gallery_lib.console.exit_code import refusal
from gallery_lib.errors import (
    Diverged,
    GalleryError,
    InputError,
    LoaderKilled,
    OutOfMemory,
    RunFailed,
    SilentRank,
)
from gallery_lib.system import sockets
from gallery_lib.system.json_files import read_json, write_json
from gallery_lib.system.processes import exit_code_of_signal, signal_of_exit_code

_OF_DAMAGED_CODE = (signal.SIGBUS, signal.SIGSEGV, signal.SIGILL)
ERROR_FILES = "error-rank*.json"
_KILLED = "Killed"
_BUS_ERROR = ": a memory-mapped file was cut short while it was read, or /dev/shm is full"


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
        message = f"rank {rank} (process {process}) was killed by {signal.Signals(number).name}"
        if number == signal.SIGKILL:
            message += ": by someone, or by the kernel because memory ran out"
        if number == signal.SIGBUS:
            message += _BUS_ERROR
        return cls(rank, _KILLED, message, exit_code=exit_code_of_signal(number), signal=number)

    def write(self, run_dir: Path) -> None:
        """Write the report where the launcher reads it: in the run's folder, or else in memory.

        The report about a killed rank stands beside one that the rank may have written itself.
        """
        name = f"{self.rank}-killed" if self.type == _KILLED else str(self.rank)
        for folder in (run_dir, Path(os.environ.get(sockets.VARIABLE, run_dir))):
            with contextlib.suppress(OSError):  # a full disk
                write_json(folder / ERROR_FILES.replace("*", name), dataclasses.asdict(self))
                return


def end_of_run(run_dir: Path, rank: int, reason: str, processes: Iterable[int]) -> NoReturn:
    """End this process and others, which would not hear a request, and report why."""
    ErrorReport(rank, SilentRank.__name__, reason).write(run_dir)
    with contextlib.suppress(OSError):  # a full disk
        print(reason, file=sys.stderr, flush=True)
    for number in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    os._exit(SilentRank.exit_code)


_LOADER = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\) "
    r"(?:exited unexpectedly|is killed by signal: (\w[\w ]*))"
)


def killed_loader(error: BaseException) -> str | None:
    """Return in a sentence which data-loading process was killed, if torch's `error` says so.

    torch raises a RuntimeError in the training process: from its SIGCHLD handler, which names the
    signal, or from the loader, which does not.
    """
    chain = [error, error.__cause__, error.__context__]
    matches = [match for one in chain if one and (match := _LOADER.search(str(one)))]
    if not isinstance(error, RuntimeError) or not matches:
        return None
    detail = next((match[2].strip() for match in matches if match[2]), "")
    how = f"was ended by a signal ({detail})" if detail else "has ended unexpectedly"
    if detail == "Bus error":
        how += _BUS_ERROR
    if detail == "Killed":
        how = "was killed by SIGKILL: by someone, or by the kernel because memory ran out"
    return f"process {matches[0][1]}, which loads data, {how}"


_NO_MEMORY = {
    "the GPU": r"(?:CUDA|HIP)(?: error:)? out of memory",
    "the host": r"DefaultCPUAllocator: |[Cc]annot allocate memory|can't allocate memory",
}
_LIMITS = {
    rf"Too many open files|exited unexpectedly with exit code {errno.EMFILE}\b": (
        resource.RLIMIT_NOFILE,
        "open files",
        "ulimit -n",
    ),
    r"unable to resize file .*File too large": (resource.RLIMIT_FSIZE, "bytes a file", "ulimit -f"),
}
_NO_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_HOW_MUCH = re.compile(r"[Tt]r(?:ied|ying) to allocate ([\d.]+ \w+)")


def what_ran_out(error: BaseException) -> str | None:
    """Return in a sentence what ran out, and what to do, if that is why `error` arose.

    It is memory, disk or a limit of the shell. A compiler raises an error of its own around
    torch's.
    """
    if isinstance(error, OSError) and error.errno in _NO_DISK:
        return refusal(error)
    chain = [error, error.__cause__, error.__context__]
    for one in filter(None, chain):
        text = str(one)
        for words, (number, what, command) in _LIMITS.items():
            if re.search(words, text):
                limit = f"the limit of {resource.getrlimit(number)[0]} {what} was reached"
                return f"{limit} (`{command}`). Raise it before the start, or use --workers 0"
        where = next((name for name, words in _NO_MEMORY.items() if re.search(words, text)), None)
        if where is None and isinstance(one, MemoryError):
            where = "the host"
        if where is not None:
            wanted = _HOW_MUCH.search(text)
            amount = f" when {wanted[1]} were asked for" if wanted else ""
            busy = ", or end what else uses it (nvidia-smi lists it)" if where == "the GPU" else ""
            return (
                f"the memory of {where} ran out{amount}. Use a smaller batch (--batch_size), "
                f"smaller inputs, or mixed precision (--amp_level O1){busy}"
            )
    return None


def _reports(*folders: Path) -> list[ErrorReport]:
    """Return the ranks' error reports, those of wrong input first; invalid files are left out."""
    reports = []
    for path in {path for folder in folders for path in folder.glob(ERROR_FILES)}:
        with contextlib.suppress(InputError, FileNotFoundError):
            reports.append(read_json(path, ErrorReport, again=""))
    return sorted(reports, key=lambda report: (-report.exit_code, report.rank))


def _with_cut_file(report: ErrorReport, read_data: Callable[[], object]) -> ErrorReport:
    """Return a report of SIGBUS with the file that was cut short, where reading it again tells."""
    if _BUS_ERROR in report.message:
        try:
            read_data()
        except Exception as error:
            message = f"{report.message}. {str(error).rstrip('.')}"
            return dataclasses.replace(report, message=message)
    return report


def of_run(
    run_dir: Path,
    code: int,
    output: str,
    last_lines: Iterable[str],
    *,
    compiled_first: bool,
    in_memory: Path | None = None,
    read_data: Callable[[], object] = bool,
) -> GalleryError:
    """Return the error to raise for a run that failed.

    Args:
        run_dir: the run's folder.
        code: exit code of the run.
        output: standard error of torchrun, shown where no rank has reported anything.
        last_lines: last log lines of rank 0.
        compiled_first: whether the run was to load compiled code and took no step.
        in_memory: where a report is that the run's folder could not take.
        read_data: opens the run's data, and raises an error for a file that was cut short.
    """
    reports = [_with_cut_file(one, read_data) for one in _reports(run_dir, in_memory or run_dir)]
    if wrong := next((one for one in reports if one.exit_code == InputError.exit_code), None):
        return InputError(wrong.message, parameter=wrong.parameter)
    killed = next((one for one in reports if one.type == _KILLED), None)
    kinds = (Diverged, SilentRank, LoaderKilled, OutOfMemory, *(() if killed else (RunFailed,)))
    for kind in kinds:
        if report := next((one for one in reports if one.type == kind.__name__), None):
            line = f"\n  {report.own_line}" if report.own_line else ""
            return kind(f"the run in {run_dir}: {report.message}.{line}")
    log = "\n".join(last_lines) or "(nothing was logged)"
    failed = RunFailed(
        f"the run in {run_dir} did not finish: {_reason(run_dir, code, killed, reports, output)}\n"
        f"Last log lines of rank 0:\n{log}"
    )
    by_signal = (killed.signal if killed else signal_of_exit_code(code)) in _OF_DAMAGED_CODE
    in_compiler = any("torch/_inductor/" in report.traceback for report in reports)
    failed.suspects_compiled_code = compiled_first and (by_signal or in_compiler)
    return failed


def _reason(
    run_dir: Path, code: int, killed: ErrorReport | None, reports: list[ErrorReport], output: str
) -> str:
    """Return why a run failed, in a sentence, with the details below it."""
    if killed is not None:
        return f"{killed.message}."
    if reports:
        first = reports[0]
        reason = f"rank {first.rank} failed with {first.type}: {first.message}"
        if first.own_line is None:
            return f"{reason}.\n{first.traceback.rstrip()}"
        return (
            f"{reason.rstrip('.')}.\n  {first.own_line}\n"
            f"The whole traceback is in {run_dir}/log-rank{first.rank}.txt."
        )
    if (number := signal_of_exit_code(code)) is not None:
        return f"its processes were ended by {number.name}, from outside or because memory ran out."
    return f"torchrun ended with exit code {code}.\n" + "\n".join(output.splitlines()[-15:])
