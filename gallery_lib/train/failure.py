"""Diagnosis of a failed run from the ranks' error files, torchrun's output and the exit code."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gallery_lib.errors import (
    Diverged,
    GalleryError,
    InputError,
    LoaderKilled,
    RunFailed,
    SilentRank,
)
from gallery_lib.system.json_files import read_json, write_json

_OF_DAMAGED_CODE = (signal.SIGBUS, signal.SIGSEGV, signal.SIGILL)
_FAILURE = re.compile(r"rank\s*:\s*(\d+)[^\n]*\n\s*exitcode\s*:\s*-(\d+) \(pid: (\d+)\)")
ERROR_FILES = "error-rank*.json"


@dataclass(frozen=True)
class ErrorReport:
    """The error that made one rank fail."""

    rank: int
    type: str  # class name of the error
    message: str
    own_line: str | None = None  # the user's own line of code, if the error arose there
    traceback: str = ""
    exit_code: int = 1

    def write(self, run_dir: Path) -> None:
        """Write the report to the run's folder, where the launcher reads it."""
        write_json(run_dir / ERROR_FILES.replace("*", str(self.rank)), dataclasses.asdict(self))


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
    said = next((match[2].strip() for match in matches if match[2]), "")
    how = f"was ended by a signal ({said})" if said else "has ended unexpectedly"
    if said == "Killed":
        how = "was killed by SIGKILL: by someone, or by the kernel because memory ran out"
    return f"process {matches[0][1]}, which loads data, {how}"


def _killed(torchrun_text: str) -> tuple[int, int, int] | None:
    """Return rank, signal and process id of the rank killed first, from torchrun's output, or None.

    torchrun lists all ranks that failed, also those that it ended itself by SIGTERM. It calls the
    first failure that it noticed the root cause. That rank may have failed only because the killed
    one was gone.
    """
    killed = [
        (int(rank), int(number), int(pid)) for rank, number, pid in _FAILURE.findall(torchrun_text)
    ]
    by_others = [
        one
        for one in killed
        if one[1] != signal.SIGTERM and f"Unable to shutdown process {one[2]}" not in torchrun_text
    ]
    root = _FAILURE.search(torchrun_text.rpartition("Root Cause")[2])
    ended = (
        [(int(root[1]), int(root[2]), int(root[3]))]
        if root and int(root[2]) == signal.SIGTERM
        else []
    )
    return next(reversed(by_others or ended), None)


def _reports(run_dir: Path) -> list[ErrorReport]:
    """Return the ranks' error reports, those of wrong input first; invalid files are left out."""
    found = []
    for path in run_dir.glob(ERROR_FILES):
        with contextlib.suppress(InputError, FileNotFoundError):
            found.append(read_json(path, ErrorReport, again=""))
    return sorted(found, key=lambda report: (-report.exit_code, report.rank))


def of_run(
    run_dir: Path, code: int, torchrun_text: str, last_lines: Iterable[str], *, compiled_first: bool
) -> GalleryError:
    """Return the error to raise for a run that failed.

    Args:
        run_dir: the run's folder.
        code: exit code of the run.
        torchrun_text: output of torchrun.
        last_lines: last log lines of rank 0.
        compiled_first: whether the run was to load compiled code and took no step.
    """
    reports = _reports(run_dir)
    if reports and reports[0].exit_code == InputError.exit_code:
        return InputError(reports[0].message)
    for kind in (Diverged, SilentRank, LoaderKilled):
        if report := next((report for report in reports if report.type == kind.__name__), None):
            return kind(f"the run in {run_dir}: {report.message}.")
    killed = _killed(torchrun_text)
    if killed is not None:
        rank, number, pid = killed
        reason = f"rank {rank} (process {pid}) was killed by {signal.Signals(number).name}"
        if number == signal.SIGKILL:
            reason += ": by someone, or by the kernel because memory ran out"
        detail = ""
    elif reports:
        reason = f"rank {reports[0].rank} failed with {reports[0].type}: {reports[0].message}"
        detail = "\n" + reports[0].traceback.rstrip()
        if own_line := reports[0].own_line:
            reason = reason.rstrip(".")
            detail = (
                f"\n  {own_line}\nThe whole traceback is in "
                f"{run_dir}/log-rank{reports[0].rank}.txt."
            )
    elif code > 128 and code - 128 in set(signal.Signals):
        reason, detail = (
            (
                f"its processes were ended by {signal.Signals(code - 128).name}, from outside or "
                "because memory ran out"
            ),
            "",
        )
    else:
        reason = f"torchrun ended with exit code {code}"
        detail = "\n" + "\n".join(torchrun_text.splitlines()[-15:])
    log = "\n".join(last_lines) or "(nothing was logged)"
    failed = RunFailed(
        f"the run in {run_dir} did not finish: {reason}.{detail}\nLast log lines of rank 0:\n{log}"
    )
    by_signal = (code > 128 and code - 128 in _OF_DAMAGED_CODE) or (
        killed is not None and killed[1] in _OF_DAMAGED_CODE
    )
    in_compiler = any("torch/_inductor/" in report.traceback for report in reports)
    failed.suspects_compiled_code = compiled_first and (by_signal or in_compiler)
    return failed
