"""The reason of a failed run is told from the files it left, whichever rank failed first."""

import os
import signal
from pathlib import Path

import pytest
import torch

from gallery_lib.errors import Diverged, InputError, OutOfMemory, RunFailed, SilentRank
from gallery_lib.system.processes import SOCKETS_VARIABLE
from gallery_lib.train import failure
from gallery_lib.train.failure import ErrorReport

KILLED = ErrorReport.of_killed(1, 43, signal.SIGKILL)
GONE = ErrorReport(0, "RuntimeError", "Connection closed by peer", traceback="frames")
CASES: dict[str, tuple[list[ErrorReport], type[Exception], str]] = {
    "a killed rank, though another failed for want of it": (
        [GONE, KILLED],
        RunFailed,
        "rank 1 (process 43) was killed by SIGKILL: by someone, or by the kernel because memory "
        "ran out.",
    ),
    "a silent rank": (
        [ErrorReport(0, "SilentRank", "rank 1 gives no sign of life"), KILLED],
        SilentRank,
        ": rank 1 gives no sign of life.",
    ),
    "a diverged run": (
        [ErrorReport(0, "Diverged", "its loss is no finite number"), KILLED],
        Diverged,
        ": its loss is no finite number.",
    ),
    "bad input of one rank": (
        [GONE, ErrorReport(1, "InputError", "batch_size=0", exit_code=2, parameter="batch_size")],
        InputError,
        "batch_size=0",
    ),
    "a rank without memory": (
        [GONE, ErrorReport(1, "OutOfMemory", "rank 1: memory ran out", own_line="line 3: x = y")],
        OutOfMemory,
        "memory ran out.\n  line 3: x = y",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_rank_to_blame_is_told(name: str, tmp_path: Path) -> None:
    reports, kind, words = CASES[name]
    for report in reports:
        report.write(tmp_path)
    found = failure.of_run(tmp_path, 1, "", ["a line"], compiled_first=False)
    assert type(found) is kind and words in str(found) and "frames" not in str(found)
    assert kind is not InputError or found.parameter == "batch_size"  # type: ignore[attr-defined]


def test_of_ranks_that_failed_the_first_is_named_and_what_is_no_report_left_out(
    tmp_path: Path,
) -> None:
    (tmp_path / "error-rank0.json").write_text("{")
    found = failure.of_run(tmp_path, 1, "the last words", [], compiled_first=False)
    assert "its processes ended with exit code 1" in str(found)
    for rank, at in ((0, 2), (1, 1)):
        ErrorReport(rank, "ValueError", "planted").write(tmp_path)
        os.utime(tmp_path / f"error-rank{rank}.json", (at, at))
    found = failure.of_run(tmp_path, 1, "", [], compiled_first=False)
    assert "rank 1 failed with ValueError" in str(found)


def test_a_report_that_the_run_s_folder_cannot_take_is_read_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SOCKETS_VARIABLE, str(tmp_path))
    ErrorReport(0, "RunFailed", "its results are lost").write(tmp_path / "not there")
    found = failure.of_run(
        tmp_path / "not there", 1, "", [], compiled_first=False, in_memory=tmp_path
    )
    assert isinstance(found, RunFailed) and str(found).endswith(": its results are lost.")


@pytest.mark.parametrize(
    ("code", "traceback", "killed_by", "compiled_first", "suspects"),
    [
        (128 + 7, "", None, True, True),
        (128 + 7, "", None, False, False),
        (1, "", signal.SIGBUS, True, True),
        (1, "", signal.SIGKILL, True, False),
        (1, 'File "/x/torch/_inductor/codecache.py", line 1', None, True, True),
        (1, 'File "/x/torch/nn/modules/linear.py", line 1', None, True, False),
        (128 + 9, "", None, True, False),
    ],
)
def test_kept_code_is_suspected_where_it_may_be_to_blame(
    tmp_path: Path,
    code: int,
    traceback: str,
    killed_by: signal.Signals | None,
    compiled_first: bool,
    suspects: bool,
) -> None:
    if traceback:
        ErrorReport(0, "OSError", "file too short", traceback=traceback).write(tmp_path)
    if killed_by:
        ErrorReport.of_killed(0, 42, killed_by).write(tmp_path)
    found = failure.of_run(tmp_path, code, "", [], compiled_first=compiled_first)
    assert isinstance(found, RunFailed) and found.suspects_compiled_code is suspects


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a"),
            "the memory of the GPU ran out when 20.00 MiB were asked for. Use a smaller batch",
        ),
        (RuntimeError("CUDA error: out of memory\nSearch for"), "the memory of the GPU ran out."),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
            "the memory of the host ran out.",
        ),
        (MemoryError(), "the memory of the host ran out."),
    ],
)
def test_memory_that_ran_out_is_told_with_what_to_do(error: BaseException, words: str) -> None:
    around = RuntimeError("backend='inductor' raised")
    around.__cause__ = error
    for one in (error, around):
        told_by = failure.what_ran_out(one)
        assert told_by is not None and told_by.startswith(words) and "--batch_size" in told_by
    assert failure.what_ran_out(RuntimeError("an index is out of range")) is None
